"""The error for a missing framework."""

from __future__ import annotations

from dispatch._internal.extras import install_extra


def missing_extra(extra: str, library: str) -> ImportError:
    """Return the error for a library that is not installed; it names the extra."""
    return ImportError(
        f"dispatch.adapters.{extra} needs {library}, which is not installed or too old. "
        f"Install it: {install_extra(extra.replace('_', '-'))}",
        name=library,
    )
