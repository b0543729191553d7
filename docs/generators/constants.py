"""Closed sets of names that programs and operators see: error types, outcomes, message properties."""

from __future__ import annotations

import sys

from dispatch import errors
from dispatch.errors import DispatchError, ErrorType, Origin, Outcome
from dispatch.messaging.wire import Feature, Property, Refusal
from docs.generators.docstrings import constants, first_paragraph, table


def exceptions() -> str:
    """Return a table of the exception classes of a call."""
    kinds = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, DispatchError)]
    kinds.remove(DispatchError)
    rows = [(f"`{kind.__name__}`", f"`{kind.outcome}`", first_paragraph(kind)) for kind in kinds]
    return table(("Class", "Outcome", "Meaning"), rows)


def outcomes() -> str:
    """Return a table of the outcomes of a call."""
    return _values("Outcome", Outcome)


def origins() -> str:
    """Return a table of the origins of timeouts and transport errors."""
    return _values("Origin", Origin)


def error_types() -> str:
    """Return a table of the error types."""
    return _values("Type", ErrorType)


def message_properties() -> str:
    """Return a table of the message properties."""
    return _values("Property", Property)


def refusals() -> str:
    """Return a table of the values of the message property ``refused``."""
    return _values("`refused`", Refusal)


def features() -> str:
    """Return a table of the values of the message property ``features``."""
    return _values("Feature", Feature)


def _values(title: str, kind: type) -> str:
    rows = [(f"`{value}`", meaning) for value, meaning in constants(sys.modules[kind.__module__], kind)]
    return table((title, "Meaning"), rows)
