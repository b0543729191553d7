"""How thorough a run is: in CI as thorough as is promised; elsewhere a part of it, which finds nearly as much."""

from __future__ import annotations

import os

IN_CI = os.environ.get("CI", "").lower() in ("1", "true", "yes")
