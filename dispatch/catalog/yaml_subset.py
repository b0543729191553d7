"""YAML restricted to JSON's types. Imports PyYAML: import this module only to read a YAML file."""

from __future__ import annotations

import re
from typing import Any

import yaml
from yaml.constructor import BaseConstructor


class _JsonLoader(yaml.SafeLoader):
    """PyYAML's safe loader with JSON's plain scalars instead of YAML 1.1's: the latter would read the style ``no`` as
    false, and a version ``2024-01-01`` as a date. Merge keys (``<<``) are not supported: nested ones grow without bound."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - PyYAML's own attribute

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.duplicates: list[tuple[str, int]] = []

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _value in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    self.duplicates.append((key.value, key.start_mark.line + 1))
                seen.add(key.value)
        # Not SafeConstructor's, which would follow an explicit !!merge tag.
        return BaseConstructor.construct_mapping(self, node, deep)


_NUMBER = r"-?(?:0|[1-9][0-9]*)"
for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"null|Null|NULL|~|", ["n", "N", "~", ""]),
    ("int", _NUMBER, "-0123456789"),
    ("float", rf"{_NUMBER}(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?", "-0123456789"),
):
    _JsonLoader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})\Z"), list(_first))


def load(text: str) -> tuple[Any, list[tuple[str, int]]]:
    """Return the value of the one document in ``text``, and the duplicate keys of mappings with their lines.

    Raises:
        yaml.YAMLError: not one document of safe YAML.
        ValueError: an explicit tag on a value that does not fit it.
        RecursionError: nested too deeply.
    """
    loader = _JsonLoader(text)
    try:
        return loader.get_single_data(), loader.duplicates
    finally:
        loader.dispose()
