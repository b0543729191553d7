"""An environment with the SDK's former line (``mcp<2``), whose servers speak handshakes only. It is created once, in
dispatch's cache folder."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

from dispatch.devtools.localbroker import cache_dir

VERSION = "1.30.0"


def v1_python() -> Path:
    """Return the interpreter of the environment."""
    folder = cache_dir() / f"mcp-{VERSION}-py{sys.version_info.major}.{sys.version_info.minor}"
    folder.mkdir(parents=True, exist_ok=True)
    python, ready = folder / "bin" / "python", folder / ".ready"
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several processes run tests
        if not ready.exists():
            subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
            pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
            subprocess.run([*pip, f"mcp=={VERSION}"], check=True)
            ready.touch()
    return python
