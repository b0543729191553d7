"""Python environments of other MCP libraries, which exclude the one of this checkout."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

REQUIREMENTS = Path(__file__).with_name("requirements")
ROOT = Path(__file__).resolve().parents[3] / ".venv-mcp"
"""Retained between runs; ``make clean`` removes it."""


def python_of(name: str) -> Path:
    """The interpreter of an environment, which is created once for each version of its requirements."""
    requirements = REQUIREMENTS / f"{name}.txt"
    folder, done = ROOT / name, ROOT / f"{name}.txt"
    python = folder / "bin" / "python"
    ROOT.mkdir(exist_ok=True)
    with open(ROOT / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several processes run tests
        if not done.exists() or done.read_text("utf-8") != requirements.read_text("utf-8"):
            subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
            install = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "-r", requirements]
            subprocess.run(install, check=True)
            done.write_text(requirements.read_text("utf-8"), "utf-8")
    return python
