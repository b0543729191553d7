"""Read the keys of one descriptor object: each mistake becomes a problem with its key and fix, and reading goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from dispatch._internal.suggestions import excerpt, near_names
from dispatch.catalog.errors import Report
from dispatch.catalog.frozen_json import join, kind, shown
from dispatch.messaging.wire.topic_name import TopicError, TopicName

MAX_NAME_CHARS: Final = 256
"""Characters in a name or an id. They end up in metric labels, in log lines and in what a model reads."""

UNENFORCED: Final = {
    "permissions": (
        "every user could call the tool",
        "and restrict access with Pulsar's permissions on the service's request namespace, or do not load the tool",
    ),
    "requires": (
        "the tool would be called at any version of its service",
        "and make sure that instances of the right version alone listen on the service's request topic",
    ),
}
"""Keys that restrict calls, and that dispatch does not enforce: what would happen, and what to do. A descriptor that has
one is refused, because a restriction that is ignored is worse than none."""


class ObjectReader:
    """Typed access to the keys of one object. A ``null`` counts as a missing key. After a mistake the value returned
    is only a stand-in: the report has ``failed``, and nothing may be made of it."""

    def __init__(self, raw: dict[str, Any], report: Report, known: tuple[str, ...], path: str = "") -> None:
        """Read ``raw``, which may have the keys ``known`` and stands at ``path`` of its descriptor."""
        self.raw = raw
        self.report = report
        self.known = known
        self.path = path

    def at(self, key: str) -> str:
        """The path of ``key``, for a report."""
        return join(self.path, key)

    def error(self, key: str, problem: str, fix: str) -> None:
        """Report an error at ``key``."""
        self.report.error(self.at(key), problem, fix)

    def text(self, key: str, example: str) -> str | None:
        """An optional text."""
        value = self.raw.get(key)
        if value is None or isinstance(value, str):
            return value
        self._wrong(key, "a text", example)
        return None

    def required_text(self, key: str, example: str, *, may_be_empty: bool = False) -> str:
        """A text that must be there."""
        if self.raw.get(key) is None:
            self._missing(key, example)
            return ""
        value = self.text(key, example)
        if value is not None and not value.strip() and not may_be_empty:
            self.error(key, f"'{key}' is empty", f'write "{key}": {json.dumps(example)}')
        return value or ""

    def name(self, key: str, example: str, default: str = "") -> str:
        """A name or id: a text of one line, bounded, without blanks around it; ``default`` when the key is missing."""
        value = default if default and self.raw.get(key) is None else self.required_text(key, example)
        if value.strip() and not value.isprintable():
            self.error(key, "a control character in a name", "use letters, digits, '-' and '_'")
        elif len(value) > MAX_NAME_CHARS:
            self.error(key, f"{len(value):,} characters", f"use a name of at most {MAX_NAME_CHARS}")
        elif value.strip() != value and value.strip():
            self.error(key, f"{shown(value)} has blanks around it", f'write "{key}": {json.dumps(value.strip())}')
        return value

    def topic(self, key: str, example: str, default: str | None = None) -> str:
        """A topic, as its whole name; ``default`` when the key is missing."""
        if default is not None and self.raw.get(key) is None:
            return default
        value = self.required_text(key, example)
        if value.strip():
            try:
                return str(TopicName.parse(value, example=example))
            except TopicError as error:
                self.error(key, error.problem, error.fix)
        return value

    def flag(self, key: str) -> bool | None:
        """An optional true or false."""
        value = self.raw.get(key)
        if value is None or isinstance(value, bool):
            return value
        self._wrong(key, "true or false", True)
        return None

    def positive_number(self, key: str, default: float) -> float:
        """An optional number above 0."""
        value = self.raw.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self._wrong(key, "a number", 1)
            return default
        if value <= 0:
            self.error(key, f"{shown(value)} is not above 0", f'write "{key}": 1, or leave it out')
        return value

    def texts(self, key: str, example: str) -> tuple[str, ...]:
        """An optional list of texts, none of them empty; what stands twice is taken once."""
        values = self._list(key, [example])
        for index, value in enumerate(values):
            if not isinstance(value, str) or not value.strip():
                what = "an empty text" if isinstance(value, str) else f"{shown(value)} instead of a text"
                self.report.error(f"{self.at(key)}[{index}]", what, f"write {json.dumps(example)}, or take it out")
        return tuple(dict.fromkeys(value for value in values if isinstance(value, str)))

    def nested(self, key: str, example: dict[str, Any]) -> dict[str, Any] | None:
        """An optional object."""
        value = self.raw.get(key)
        if value is None or isinstance(value, dict):
            return value
        self._wrong(key, "an object", example)
        return None

    def each(self, key: str, known: tuple[str, ...], example: dict[str, Any]) -> Iterator[ObjectReader]:
        """The objects of an optional list, each with a reader of its own for the keys ``known``."""
        for index, value in enumerate(self._list(key, [example])):
            path = f"{self.at(key)}[{index}]"
            if isinstance(value, dict):
                yield ObjectReader(value, self.report, known, path)
            else:
                self.report.error(path, f"{shown(value)} instead of an object", f"write {json.dumps(example)}")

    def warn_unknown(self, silent: tuple[str, ...] = ()) -> None:
        """A warning for each key that is neither known nor to be passed over in silence."""
        for key in self.raw:
            if key not in self.known and key not in silent:
                meant = near_names(key, self.known, 1)
                fix = f"did you mean '{meant[0]}'? Else take it out" if meant else "take it out"
                self.report.warning(self.at(key), "an unknown key, which is ignored", fix)

    def refuse_unenforced(self) -> None:
        """Report an error for each key of :data:`UNENFORCED` that has a value. Call it on a tool and on its service."""
        for key, (problem, fix) in UNENFORCED.items():
            if self.raw.get(key) is not None:
                self.error(key, f"'{key}' is not enforced in this release, so {problem}", f"remove '{key}', {fix}")

    def _list(self, key: str, example: object) -> tuple[Any, ...]:
        value = self.raw.get(key)
        if value is None:
            return ()
        if isinstance(value, tuple):
            return value
        self._wrong(key, "a list", example)
        return ()

    def _missing(self, key: str, example: str) -> None:
        self.error(
            key,
            f"the required key '{key}' is {'null' if key in self.raw else 'missing'}",
            self.fix_missing(key, example),
        )

    def fix_missing(self, key: str, example: object) -> str:
        """What to do about a missing key: rename one that was probably meant for it, or add it."""
        fix = f'add "{key}": {json.dumps(example)}'
        meant = near_names(key, [other for other in self.raw if other not in self.known], 1)
        return f"rename '{excerpt(meant[0])}' to '{key}', or {fix}" if meant else fix

    def _wrong(self, key: str, expected: str, example: object) -> None:
        value = self.raw[key]
        self.error(key, f"'{key}' is {kind(value)}, not {expected}", f'write "{key}": {json.dumps(example)}')
