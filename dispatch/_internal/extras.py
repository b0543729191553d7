"""How to install an optional dependency."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_CHECKOUT: Final = (Path(__file__).parents[2] / "pyproject.toml").is_file()
"""This package is in a checkout of the repository, where a package index may not have its name."""


def install_extra(extra: str) -> str:
    """Return the command that installs the extra ``extra``."""
    command = f"pip install 'tool-dispatch[{extra}]'"
    return f"{command} (in this checkout: pip install -e '.[{extra}]')" if _CHECKOUT else command
