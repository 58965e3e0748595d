"""`python -m humanline.cli`."""

import sys

from humanline.cli import main

if __name__ == "__main__":
    sys.exit(main())
