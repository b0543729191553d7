"""``python -m dispatch``: the same as the command ``dispatch``."""

import sys

from dispatch.cli import main

if __name__ == "__main__":
    sys.exit(main())
