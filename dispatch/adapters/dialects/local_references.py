"""References within a schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def resolve_reference(root: Mapping[str, Any], reference: object) -> Any:
    """Return the schema at ``#`` or ``#/path``; None: there is none. Nothing is fetched."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    found: Any = root
    for part in reference[1:].split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping) and key in found:
            found = found[key]
        elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        else:
            return None
    return found if reference == "#" or reference.startswith("#/") else None
