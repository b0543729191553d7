"""jsonschema-rs, imported at its first use, and never allowed to fetch anything."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from types import ModuleType

    from jsonschema_rs import Validator

MISSING_EXTRA = (
    "Validation against a JSON Schema needs jsonschema-rs, which is not installed. "
    "Install it: pip install 'tool-dispatch[schema]'"
)


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


def compile_schema(schema: Mapping[str, Any] | bool) -> Validator:
    """Return the compiled validator of ``schema``, which may consist of immutable JSON values.

    Raises:
        ImportError: jsonschema-rs is not installed.
        jsonschema_rs.ValidationError: no schema of JSON Schema 2020-12, or a reference that is not in it.
    """
    engine = load_engine()
    # The schema is passed as text: the engine does not know the immutable values of a catalogue. Without `offline` it
    # requests addresses; `jsonschema_rs.meta` has no such switch, and requests the address in "$schema" (0.60.3).
    validator: Validator = engine.Draft202012Validator(
        msgspec.json.encode(schema).decode(),
        offline=True,
        pattern_options=engine.FancyRegexOptions(backtrack_limit=BACKTRACK_LIMIT),
    )
    return validator


BACKTRACK_LIMIT = 100_000
"""Steps of a pattern with look-around or back-references (a few milliseconds); other patterns run in linear time."""
