"""The entries of these servers in a configuration."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


def stdio(name: str, *args: str, **keys: Any) -> dict[str, Any]:
    """Return the entry of a server on stdin and stdout; ``keys`` are further keys, with ``_`` for ``-``."""
    own = {key.replace("_", "-"): value for key, value in keys.items()}
    return {"command": sys.executable, "args": [str(FOLDER / f"{name}.py"), *args], **own}
