"""Text → JSON values, from JSON and from YAML, with every syntax error placed."""

from __future__ import annotations

import json
from typing import Any, Final

from dispatch._internal.suggestions import excerpt

YAML_EXTRA: Final = "pip install 'tool-dispatch[yaml]'"


class DocumentError(ValueError):
    """A text that is no document. ``mistakes`` are pairs of (key, problem, fix)."""

    def __init__(self, *mistakes: tuple[str, str, str]) -> None:
        super().__init__("; ".join(problem for _key, problem, _fix in mistakes))
        self.mistakes = mistakes


def parse_json(text: str) -> Any:
    """The value in a JSON text.

    Raises:
        DocumentError: it is empty, no JSON (RFC 8259: no comments, no NaN), or an object has a key twice.
    """
    if not text.strip():
        raise DocumentError(("", "the file is empty", "write a descriptor, or delete the file"))
    twice: dict[str, None] = {}

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        if len(value) != len(pairs):
            seen: set[str] = set()
            for key, _ in pairs:
                if key in seen:
                    twice[key] = None
                seen.add(key)
        return value

    try:
        value = json.loads(text, object_pairs_hook=unique, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise DocumentError(("", f"no JSON: {error.msg} at {place}", f"mend {place}")) from None
    except RecursionError:
        raise DocumentError(_too_deep()) from None
    except ValueError as error:  # NaN and Infinity; a whole number of thousands of digits
        raise DocumentError(("", f"no JSON: {excerpt(str(error), 120)}", "write a finite number, or a text")) from None
    if twice:
        raise DocumentError(*(_twice(key) for key in list(twice)[:20]))
    return value


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _too_deep() -> tuple[str, str, str]:
    return "", "too many objects or lists inside one another", "make the value flatter"


def _twice(key: str, place: str = "") -> tuple[str, str, str]:
    return excerpt(key), f"the key '{excerpt(key)}' stands twice in one object{place}", "take one of the two out"


def parse_yaml(text: str) -> Any:
    """The value in a YAML text, which must be one that JSON could say: ``no`` and ``2024-01-01`` are texts, only
    ``true`` and ``false`` are booleans, and there are no merge keys.

    Raises:
        DocumentError: PyYAML is not installed, or the text is empty, no YAML, or has a key twice in one mapping.
    """
    try:
        import yaml  # an extra: whoever writes JSON only does not need it
    except ImportError:
        raise DocumentError(("", "PyYAML is needed to read YAML", f"{YAML_EXTRA}, or write the file as JSON")) from None
    from dispatch.catalog.yaml_subset import load  # imports yaml itself

    if not text.strip():
        raise DocumentError(("", "the file is empty", "write a descriptor, or delete the file"))
    try:
        value, twice = load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "an unknown place"
        what = excerpt(error.problem or error.context or "not readable", 120)
        raise DocumentError(("", f"no YAML: {what} at {place}", f"mend {place}")) from None
    except yaml.YAMLError as error:  # a character that YAML does not allow
        what = excerpt(" ".join(str(error).split()), 120)
        raise DocumentError(("", f"no YAML: {what}", "take that character out")) from None
    except RecursionError:
        raise DocumentError(_too_deep()) from None
    except ValueError as error:
        what = excerpt(str(error), 120)
        raise DocumentError(("", f"no YAML: {what}", "write the value as a text, in quotes")) from None
    if twice:
        raise DocumentError(*(_twice(key, f" (line {line})") for key, line in twice[:20]))
    return value
