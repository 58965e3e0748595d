"""The command `humanline` with a testbed, `micro`, whose whole suite takes seconds: `python -m` this, and words.

Its few cells are one of each kind, those of a model of another family, of which no hypothesis is.
"""

from __future__ import annotations

import sys

from humanline.reproduce import cells
from humanline.reproduce.cells import Cell
from tests.helpers.micro_testbed import MICRO

#: Offline, humanline, of KTO, and sampled in rounds.
CELLS = (
    Cell("dpo", "offline", 1e-3, beta=1.0),
    Cell("dpo", "humanline", 1e-3, beta=1.0, every=8),
    Cell("kto", "humanline", 1e-3, beta=1.0, every=8),
    Cell("grpo", "online humanline", 1e-3, clip_eps=0.5, every=8),
)


def main(words: list[str]) -> int:
    """Run `humanline` with these words."""
    cells.figure_9 = lambda: list(CELLS)  # before others import it
    from humanline.cli import main as command
    from humanline.reproduce.plan import SECONDS
    from humanline.reproduce.testbeds.registry import OTHERS

    OTHERS[MICRO.name], SECONDS[MICRO.name] = MICRO, (1.0, 1.0, 1.0)
    return command(words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
