"""``python -m benchmarks.incidents``."""

from __future__ import annotations

import sys

from benchmarks.incidents.cli import main

if __name__ == "__main__":
    sys.exit(main())
