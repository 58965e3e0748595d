"""Write studies/frontier/power.md: what the committed hypotheses can find, on simulated grids with fixed seeds."""

from __future__ import annotations

import sys
from pathlib import Path

from humanline.reproduce.power import power_table
from humanline.reproduce.rules import read_rules
from humanline.system.committed import leave, options

FOLDER = Path(__file__).resolve().parent.parent / "studies" / "frontier"
GRIDS = 300
TEXT = f"""# What the hypotheses' tests can find

`python scripts/make_power.py` makes this file: {GRIDS} grids of synthetic runs in each world, seeds 0 to {GRIDS - 1},
judged as the real ones are. The known curve has the start (.543) and the peak (.73) seen on letters before; it is a
power of KL less a multiple of KL, which no polynomial in log KL is, or ("quadratic") a quadratic in log KL. Scatter,
unless said: .011 between draws, .019 between cells, the same in all starts, .01 between starts in the curve's height; 3
starts, 3 draws. Where "starts differ", what is compared differs by .01 more from start to start. Distances are
made up: other distances, another scatter or a smaller gain give other shares.

"Exclude 0" is how often an interval finds a difference; "holds" and "fails" are verdicts, corrected as they will be. Of
{GRIDS} a share of .05 has a standard error of .013, one of .5 of .029.

"""


def main() -> int:
    """Write the file, or with --check say whether it is what the code makes."""
    check = options("Write what the hypotheses' tests can find.").parse_args().check
    table = power_table(read_rules(FOLDER / "hypotheses.yaml"), grids=GRIDS)
    return leave(FOLDER / "power.md", TEXT + table, check=check)


if __name__ == "__main__":
    sys.exit(main())
