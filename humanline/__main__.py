"""`python -m humanline`: the command line."""

from __future__ import annotations

import sys

from humanline.cli import main

if __name__ == "__main__":
    sys.exit(main())
