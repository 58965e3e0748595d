"""Write studies/claims.md: the paper's claims beside what every scale that was tried says of them."""

from __future__ import annotations

import sys
from pathlib import Path

from humanline.reproduce.across import claims_table
from humanline.reproduce.testbeds.registry import TESTBEDS

STUDIES = Path(__file__).resolve().parent.parent / "studies"
TEXT = """# The paper's claims, at every scale that was tried

`python scripts/make_claims.py` makes this file of [the simulator's verdicts](simulator/claims.md) and of each testbed's
`paper.csv` (`humanline reproduce TESTBED --all`; see [frontier](frontier/README.md)). The paper's numbers are of models
of 8 and 27 billion parameters: length-controlled win rates in percent, or lengths; first, second. No number here is of
that scale. On exact problems the difference is a share of what there is to gain, on testbeds a difference of scores (or
of tokens) with its 95 % interval over start models. Verdicts are corrected by Holm's method, each within its own claim,
but for a testbed's *does not hold*, which is that interval lying wholly on the other side. *Undecided* is what the runs
do not decide; it is no evidence for either side.

"""


def main() -> int:
    """Write the file, or with --check say whether it is what its sources make."""
    beds = {name: STUDIES / "frontier" / name / "paper.csv" for name in TESTBEDS}
    text = TEXT + claims_table(STUDIES / "simulator" / "claims.csv", {n: p for n, p in beds.items() if p.is_file()})
    path = STUDIES / "claims.md"
    if "--check" in sys.argv[1:]:
        return 0 if path.read_text(encoding="utf-8") == text else 1
    path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
