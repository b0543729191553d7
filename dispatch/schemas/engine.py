"""jsonschema-rs, imported at its first use, and never allowed to fetch anything."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from dispatch._internal.extras import install_extra

if TYPE_CHECKING:
    from types import ModuleType

MISSING_EXTRA = (
    "Validation against a JSON Schema needs jsonschema-rs, which is not installed. "
    f"Install it: {install_extra('schema')}"
)


@cache  # perf: Python searches its path at every import of a module that is missing
def has_engine() -> bool:
    """Return whether jsonschema-rs is installed."""
    try:
        load_engine()
    except ImportError:
        return False
    return True


@cache
def load_engine() -> ModuleType:
    """Import jsonschema-rs.

    Raises:
        ImportError: it is not installed; the message names the extra.
    """
    try:
        import jsonschema_rs
    except ImportError:
        raise ImportError(MISSING_EXTRA, name="jsonschema_rs") from None
    return jsonschema_rs
