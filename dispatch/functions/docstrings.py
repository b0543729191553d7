"""Descriptions in docstrings: of a function, and of its parameters."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

_SEPARATOR: Final = re.compile(r"\s*,\s*")


class Docstring(NamedTuple):
    """The texts for models in a docstring.

    Attributes:
        description: of the function.
        parameters: descriptions of parameters by name.
    """

    description: str
    parameters: Mapping[str, str]


def read_docstring(text: str | None) -> Docstring:
    """Read a docstring in the style of Google, NumPy, Sphinx or Epydoc.

    Without docstring-parser (the extra ``functions``), or if the docstring has none of these styles, all of its text is the
    description: models find the parameters in it as well.
    """
    if not text or not text.strip():
        return Docstring("", {})
    whole = inspect.cleandoc(text)
    try:
        from docstring_parser import ParseError, parse
    except ImportError:
        return Docstring(whole, {})
    try:
        parsed = parse(whole)
    except ParseError:
        return Docstring(whole, {})
    parts = [part for part in (parsed.short_description, parsed.long_description) if part]
    parameters = {
        name.lstrip("*"): " ".join(param.description.split())
        for param in parsed.params
        if param.description
        for name in _SEPARATOR.split(param.arg_name)
    }
    return Docstring("\n\n".join(parts), parameters)
