"""Every key that a policy accepts: its type, its default, its meaning and the reason for the default."""

from __future__ import annotations

import json
import re
import types
import typing
from collections.abc import Iterator

import msgspec

from dispatch.policy import Policy
from docs.generators.docstrings import attributes, first_paragraph, table

_NAMES = {float: "number", int: "integer", str: "text", bool: "`true` or `false`", types.NoneType: "`null`"}


def parts(kind: type[msgspec.Struct] = Policy) -> Iterator[tuple[str, type[msgspec.Struct]]]:
    """Yield the key and the class of each field that is an object with keys of its own."""
    hints = typing.get_type_hints(kind)
    for key, field in zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True):
        for each in _alternatives(hints[field]):
            if isinstance(each, type) and issubclass(each, msgspec.Struct):
                yield key, each


def policy_keys() -> str:
    """Return the reference of all keys: one table for the policy, one for each of its parts."""
    sections = ["## The policy\n\n" + _keys(Policy)]
    shown: dict[type[msgspec.Struct], str] = {}
    for key, kind in parts():
        if kind in shown:
            sections.append(f"## `{key}`\n\nThe keys of [`{shown[kind]}`](#{shown[kind]}).\n")
        else:
            shown[kind] = key
            sections.append(f"## `{key}`\n\n{first_paragraph(kind)}\n\n{_keys(kind)}")
    return "\n".join(sections)


def _keys(kind: type[msgspec.Struct]) -> str:
    described = attributes(kind)
    hints = typing.get_type_hints(kind)
    with_keys = dict(parts(kind))
    rows = []
    for field in msgspec.structs.fields(kind):
        key = field.encode_name
        name = f"[`{key}`](#{key})" if key in with_keys else f"`{key}`"
        rows.append((name, _type(hints[field.name]), _default(field), _in_json(described[field.name])))
    return table(("Key", "Type", "Default", "Meaning, and reason for the default"), rows)


def _in_json(text: str) -> str:
    """Return a description with the names and values of JSON instead of those of Python."""
    text = re.sub(r"`([a-z_]+)`", lambda found: f"`{found[1].replace('_', '-')}`", text)
    for python, name in (("None", "`null`"), ("False", "`false`"), ("True", "`true`")):
        text = re.sub(rf"\b{python}\b", name, text)
    return text


def _alternatives(hint: object) -> tuple[object, ...]:
    return typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)


def _type(hint: object) -> str:
    names = []
    for each in _alternatives(hint):
        origin = typing.get_origin(each)
        if isinstance(each, type) and issubclass(each, msgspec.Struct):
            names.append("object")
        elif origin is typing.Literal:
            names.extend(f'`"{value}"`' for value in typing.get_args(each))
        elif origin is not None:
            names.append("list" if origin in (tuple, list) else "object")
        else:
            names.append(_NAMES.get(each, getattr(each, "__name__", str(each))))  # type: ignore[call-overload] # any key
    return ", ".join(names)


def _default(field: msgspec.structs.FieldInfo) -> str:
    value = field.default if field.default is not msgspec.NODEFAULT else None
    if field.default is msgspec.NODEFAULT and field.default_factory is msgspec.NODEFAULT:
        return "required"
    if isinstance(value, msgspec.Struct):
        return "on"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return f"`{json.dumps(value)}`"
