"""Parsers of JSON and YAML that report the place of each syntax error."""

from __future__ import annotations

import json
import sys
from typing import Any, Final

from dispatch._internal.extras import install_extra
from dispatch._internal.suggestions import excerpt

YAML_EXTRA: Final = install_extra("yaml")


class DocumentError(ValueError):
    """A text is not a valid document. ``mistakes`` are tuples of key, problem and fix."""

    def __init__(self, *mistakes: tuple[str, str, str]) -> None:
        super().__init__("; ".join(problem for _key, problem, _fix in mistakes))
        self.mistakes = mistakes


def parse_json(text: str) -> Any:
    """Return the value of a JSON text.

    Raises:
        DocumentError: the text is empty, not JSON (RFC 8259: no comments, no NaN), or an object has a duplicate key.
    """
    if not text.strip():
        raise DocumentError(("", "the file is empty", "write a descriptor, or delete the file"))
    duplicates: dict[str, None] = {}

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = {sys.intern(key): inner for key, inner in pairs}  # thousands of descriptors have the same keys
        if len(value) != len(pairs):
            seen: set[str] = set()
            for key, _ in pairs:
                if key in seen:
                    duplicates[key] = None
                seen.add(key)
        return value

    try:
        value = json.loads(text, object_pairs_hook=unique, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise DocumentError(("", f"not JSON: {error.msg} at {place}", f"correct {place}")) from None
    except RecursionError:
        raise DocumentError(_too_deep()) from None
    except ValueError as error:  # NaN and Infinity; a whole number of thousands of digits
        raise DocumentError(("", f"not JSON: {excerpt(str(error), 120)}", "write a finite number, or a text")) from None
    if duplicates:
        raise DocumentError(*(_duplicate(key) for key in list(duplicates)[:20]))
    return value


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _too_deep() -> tuple[str, str, str]:
    return "", "too many nested objects or lists", "make the value flatter"


def _duplicate(key: str, place: str = "") -> tuple[str, str, str]:
    return excerpt(key), f"duplicate key '{excerpt(key)}' in one object{place}", "remove one of the two"


def parse_yaml(text: str) -> Any:
    """Return the value of a YAML text with JSON's types: ``no`` and ``2024-01-01`` are texts, only ``true`` and ``false``
    are booleans, and merge keys are not supported.

    Raises:
        DocumentError: PyYAML is not installed, or the text is empty, not YAML, or has a duplicate key in a mapping.
    """
    try:
        import yaml  # an extra: not needed for JSON
    except ImportError:
        raise DocumentError(("", "PyYAML is needed to read YAML", f"{YAML_EXTRA}, or write the file as JSON")) from None
    from dispatch.catalog.readers.yaml_subset import load  # imports yaml itself

    if not text.strip():
        raise DocumentError(("", "the file is empty", "write a descriptor, or delete the file"))
    try:
        value, duplicates = load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "an unknown place"
        what = excerpt(error.problem or error.context or "not readable", 120)
        raise DocumentError(("", f"not YAML: {what} at {place}", f"correct {place}")) from None
    except yaml.YAMLError as error:  # a character that YAML does not allow
        what = excerpt(" ".join(str(error).split()), 120)
        raise DocumentError(("", f"not YAML: {what}", "remove that character")) from None
    except RecursionError:
        raise DocumentError(_too_deep()) from None
    except ValueError as error:
        what = excerpt(str(error), 120)
        raise DocumentError(("", f"not YAML: {what}", "write the value as a text, in quotes")) from None
    if duplicates:
        raise DocumentError(*(_duplicate(key, f" (line {line})") for key, line in duplicates[:20]))
    return value
