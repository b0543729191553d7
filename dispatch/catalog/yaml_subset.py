"""YAML reduced to what JSON can say. Imports PyYAML, so it is itself imported only when a YAML file is met."""

from __future__ import annotations

import re
from typing import Any

import yaml
from yaml.constructor import BaseConstructor


class _JsonLoader(yaml.SafeLoader):
    """PyYAML's safe loader with JSON's plain scalars instead of YAML 1.1's: the latter would read the style ``no`` as
    false, and a version ``2024-01-01`` as a date. Merge keys (``<<``) go too: nested ones grow without bound."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - PyYAML's own attribute

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.twice: list[tuple[str, int]] = []

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _value in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    self.twice.append((key.value, key.start_mark.line + 1))
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
    """The value of the one document in ``text``, and the keys (with line) that stand twice in a mapping.

    Raises:
        yaml.YAMLError: not one document of safe YAML.
        ValueError: an explicit tag on a value that does not fit it.
        RecursionError: nested too deeply.
    """
    loader = _JsonLoader(text)
    try:
        return loader.get_single_data(), loader.twice
    finally:
        loader.dispose()
