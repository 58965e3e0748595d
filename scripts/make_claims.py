"""Write studies/claims.md: the paper's claims beside what every scale that was tried says of them."""

from __future__ import annotations

import sys
from pathlib import Path

from humanline.reproduce.across import claims_table
from humanline.reproduce.scales.registry import SCALES
from humanline.reproduce.testbeds.registry import OTHERS, TESTBEDS
from humanline.system.committed import leave, options

STUDIES = Path(__file__).resolve().parent.parent / "studies"
TEXT = """# The paper's claims, at every scale that was tried

`python scripts/make_claims.py` makes this file of [the simulator's verdicts](simulator/claims.md) and of each
testbed's `paper.csv` (`humanline reproduce TESTBED --all --draws 3`; see [frontier](frontier/README.md)); draws that
chose no cell are from `--chosen 10`, where it was run. The paper's numbers are of models of 8 and 27 billion
parameters: length-controlled win rates in percent, or lengths; first, second. Runs of larger models are declared, and
none was made here: `humanline reproduce --scale small` (0.5B, a day of one GPU) and `--scale paper` write, check and
read them, `--only` those of a row; a finished plan's `paper.csv` in `studies/scales/small` or `paper` fills the last
column. On exact problems the difference is a share of what there is to gain, on testbeds (three draws of the pairs
from each of three start models) a difference of scores (or of tokens) with its 95 % interval over start models.
Verdicts for and against are corrected by Holm's method, in their claim; intervals are not. *Undecided* is what the runs
do not decide; it is no evidence for either side.

"""


def main() -> int:
    """Write the file, or with --check say whether it is what its sources make."""
    check = options("Write the table of the paper's claims.").parse_args().check
    beds = {name: STUDIES / "frontier" / name / "paper.csv" for name in TESTBEDS | OTHERS}
    scales = {name: STUDIES / "scales" / name / "paper.csv" for name in SCALES}
    sampled = {name: STUDIES / "frontier" / name / "sampling" / "findings.csv" for name in TESTBEDS}
    chosen = {name: STUDIES / "frontier" / name / "chosen" / "chosen.csv" for name in TESTBEDS}
    told = ({name: path for name, path in some.items() if path.is_file()} for some in (beds, scales, sampled, chosen))
    return leave(STUDIES / "claims.md", TEXT + claims_table(STUDIES / "simulator" / "claims.csv", *told), check=check)


if __name__ == "__main__":
    sys.exit(main())
