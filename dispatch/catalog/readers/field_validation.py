"""Reads the keys of one descriptor object. Each error is reported with its key and fix, and reading continues."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Final

from dispatch._internal.suggestions import excerpt, find_near_names, write_json
from dispatch.catalog.errors import Report
from dispatch.catalog.frozen_json import describe_kind, describe_value, join_path
from dispatch.catalog.readers.item_key import ItemKey
from dispatch.catalog.versions import VERSION_EXAMPLE, is_version
from dispatch.messaging.wire.topic_name import TopicError, TopicName
from dispatch.permissions.permission_set import check_permission

MAX_NAME_CHARS: Final = 256
"""Characters of a name or an id: they appear in metric labels, log lines and texts for models."""

MAX_MODEL_NAME_CHARS: Final = 64
"""Characters of a tool's name that the APIs of models accept."""


class ObjectReader:
    """Typed access to the keys of one object. A ``null`` counts as a missing key. After an error the returned value is a
    placeholder: the report ``has_errors``, and the object must not be used."""

    def __init__(self, raw: dict[str, Any], report: Report, known: tuple[str, ...], path: str = "") -> None:
        """Read ``raw``, which may have the keys ``known`` and is at ``path`` of its descriptor."""
        self.raw = raw
        self.report = report
        self.known = known
        self.path = path

    def path_of(self, key: str) -> str:
        """Return the path of ``key``, for a report."""
        return join_path(self.path, key)

    def add_error(self, key: str, problem: str, fix: str) -> None:
        """Report an error at ``key``."""
        self.report.add_error(self.path_of(key), problem, fix)

    def read_text(self, key: str, example: str) -> str | None:
        """Read an optional text."""
        value = self.raw.get(key)
        if value is None or isinstance(value, str):
            return value
        self._wrong(key, "a text", example)
        return None

    def read_required_text(self, key: str, example: str, *, may_be_empty: bool = False) -> str:
        """Read a required text."""
        if self.raw.get(key) is None:
            self._missing(key, example)
            return ""
        value = self.read_text(key, example)
        if value is not None and not value.strip() and not may_be_empty:
            self.add_error(key, f"'{key}' is empty", f'write "{key}": {write_json(example)}')
        return value or ""

    def read_name(self, key: str, example: str, default: str = "") -> str:
        """Read a name or id: one line, bounded, without blanks around it; ``default`` if the key is missing."""
        value = default if default and self.raw.get(key) is None else self.read_required_text(key, example)
        if value.strip() and not value.isprintable():
            self.add_error(key, "a control character in a name", "use letters, digits, '-' and '_'")
        elif len(value) > MAX_NAME_CHARS:
            self.add_error(key, f"{len(value):,} characters", f"use a name of at most {MAX_NAME_CHARS}")
        elif value.strip() != value and value.strip():
            self.add_error(
                key, f"{describe_value(value)} has blanks around it", f'write "{key}": {write_json(value.strip())}'
            )
        return value

    def read_topic(self, key: str, example: str, default: str | None = None) -> str:
        """Read a topic as its whole name; ``default`` if the key is missing."""
        if default is not None and self.raw.get(key) is None:
            return default
        value = self.read_required_text(key, example)
        if value.strip():
            try:
                return str(TopicName.parse(value, example=example))
            except TopicError as error:
                self.add_error(key, error.problem, error.fix)
        return value

    def read_flag(self, key: str) -> bool | None:
        """Read an optional boolean."""
        value = self.raw.get(key)
        if value is None or isinstance(value, bool):
            return value
        self._wrong(key, "true or false", True)
        return None

    def read_positive_number(self, key: str, default: float) -> float:
        """Read an optional number above 0."""
        value = self.raw.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self._wrong(key, "a number", 1)
            return default
        if value <= 0:
            self.add_error(key, f"{describe_value(value)} is not above 0", f'write "{key}": 1, or remove it')
        return value

    def read_texts(self, key: str, example: str, *, may_be_empty: bool = False) -> tuple[str, ...]:
        """Read an optional list of texts; duplicates are dropped. ``may_be_empty``: a text may be blank."""
        values = self._list(key, [example])
        for index, value in enumerate(values):
            if not isinstance(value, str) or not (may_be_empty or value.strip()):
                what = "an empty text" if isinstance(value, str) else f"{describe_value(value)} instead of a text"
                self.report.add_error(
                    f"{self.path_of(key)}[{index}]", what, f"write {write_json(example)}, or remove it"
                )
        # Interned: thousands of tools share a few tags, groups and permissions.
        return tuple(dict.fromkeys(sys.intern(value) for value in values if isinstance(value, str)))

    def read_permissions(self) -> tuple[str, ...]:
        """Read the optional key ``permissions``. An empty list is an error: it may be meant as "no user may call it"."""
        key, example = "permissions", "tools:jokes"
        values = self._list(key, [example])
        if self.raw.get(key) == ():
            self.add_error(
                key, "the list is empty", f'write "{key}": ["{example}"], or remove it: every user may call then'
            )
        for index, value in enumerate(values):
            problem = (
                check_permission(value) if isinstance(value, str) else f"{describe_value(value)} instead of a text"
            )
            if problem is not None:
                self.report.add_error(
                    f"{self.path_of(key)}[{index}]", problem, f'write a permission such as "{example}"'
                )
        return tuple(dict.fromkeys(value for value in values if isinstance(value, str)))

    def read_version(self, item_key: ItemKey) -> str | None:
        """Read the optional key ``version``. The version in the item's key is its default, and excludes another one."""
        version = self.read_text("version", VERSION_EXAMPLE)
        if version is None:
            return item_key.version
        if not is_version(version):
            self.add_error(
                "version",
                f"'{excerpt(version)}' is not a SemVer version",
                f'write three numbers, for example "version": "{VERSION_EXAMPLE}"',
            )
        elif item_key.version is not None and version != item_key.version:
            self.add_error(
                "version",
                f"'{excerpt(version)}' differs from the version '{excerpt(item_key.version)}' in the item's key",
                "remove 'version', or store the item under the key NAME@VERSION of this version",
            )
        return version

    def add_namespace(self, key: str, name: str, namespace: str, limit: int) -> str:
        """Return ``name`` with the prefix of its namespace; more than ``limit`` characters are an error."""
        if not namespace or not name.strip():
            return name
        full = f"{namespace}-{name}"
        if len(full) > limit:
            self.add_error(
                key,
                f"'{excerpt(full)}' has {len(full):,} characters with the namespace '{excerpt(namespace)}'",
                f"shorten the {key} or the namespace: at most {limit} characters together",
            )
        return full

    def read_object(self, key: str, example: dict[str, Any]) -> dict[str, Any] | None:
        """Read an optional object."""
        value = self.raw.get(key)
        if value is None or isinstance(value, dict):
            return value
        self._wrong(key, "an object", example)
        return None

    def read_objects(self, key: str, known: tuple[str, ...], example: dict[str, Any]) -> Iterator[ObjectReader]:
        """Yield a reader for each object of an optional list, with the keys ``known``."""
        for index, value in enumerate(self._list(key, [example])):
            path = f"{self.path_of(key)}[{index}]"
            if isinstance(value, dict):
                yield ObjectReader(value, self.report, known, path)
            else:
                self.report.add_error(
                    path, f"{describe_value(value)} instead of an object", f"write {write_json(example)}"
                )

    def warn_of_unknown_keys(self, silent: tuple[str, ...] = ()) -> None:
        """Report a warning for each key that is neither known nor in ``silent``."""
        for key in self.raw:
            if key not in self.known and key not in silent:
                meant = find_near_names(key, self.known, 1)
                fix = f"rename it to '{meant[0]}' if you meant that, or remove it" if meant else "remove it"
                self.report.add_warning(self.path_of(key), "an unknown key, which is ignored", fix)

    def _list(self, key: str, example: object) -> tuple[Any, ...]:
        value = self.raw.get(key)
        if value is None:
            return ()
        if isinstance(value, tuple):
            return value
        self._wrong(key, "a list", example)
        return ()

    def _missing(self, key: str, example: str) -> None:
        self.add_error(
            key,
            f"the required key '{key}' is {'null' if key in self.raw else 'missing'}",
            self.describe_missing(key, example),
        )

    def describe_missing(self, key: str, example: object) -> str:
        """Return the fix of a missing key: rename a similar one, or add it."""
        fix = f'add "{key}": {write_json(example)}'
        meant = find_near_names(key, [other for other in self.raw if other not in self.known], 1)
        return f"rename '{excerpt(meant[0])}' to '{key}', or {fix}" if meant else fix

    def _wrong(self, key: str, expected: str, example: object) -> None:
        value = self.raw[key]
        self.add_error(
            key, f"'{key}' is {describe_kind(value)}, not {expected}", f'write "{key}": {write_json(example)}'
        )
