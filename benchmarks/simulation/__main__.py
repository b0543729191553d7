"""``python -m benchmarks.simulation``."""

from __future__ import annotations

import sys

from benchmarks.simulation.cli import main

if __name__ == "__main__":
    sys.exit(main())
