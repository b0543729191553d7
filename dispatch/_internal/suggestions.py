"""Suggestions for misspelt names, and safe display of names in messages."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Sequence
from typing import Final

_SEPARATORS: Final = re.compile(r"[-_.\s]+")
_MAX_COMPARED_CHARS: Final = 100
_MAX_COMPARED_NAMES: Final = 500
"""Names that are compared with a misspelt one. A comparison costs 20 µs on the caller's event loop: at most 10 ms in all."""


def find_near_names(name: str, known: Iterable[str], limit: int = 3) -> tuple[str, ...]:
    """Return up to ``limit`` of the ``known`` names that are similar to ``name``, best first.

    Names that differ only in case or in ``-``, ``_``, ``.`` and blanks precede those with a similar spelling.
    """
    wanted = _plain(name[:_MAX_COMPARED_CHARS])
    by_plain: dict[str, list[str]] = {}
    for candidate in known:
        by_plain.setdefault(_plain(candidate[:_MAX_COMPARED_CHARS]), []).append(candidate)
    found = list(by_plain.get(wanted, ()))
    if len(found) < limit:
        others = _comparable(wanted, [plain for plain in by_plain if plain != wanted])
        for plain in difflib.get_close_matches(wanted, others, n=limit):
            found += by_plain[plain]
    return tuple(found[:limit])


def _comparable(wanted: str, candidates: list[str]) -> list[str]:
    if len(candidates) <= _MAX_COMPARED_NAMES:
        return candidates
    # In a large catalogue only names that share a word or the first letters are compared.
    words = set(wanted.split("-"))
    likely = [plain for plain in candidates if plain[:2] == wanted[:2] or not words.isdisjoint(plain.split("-"))]
    return likely[:_MAX_COMPARED_NAMES]


def _plain(name: str) -> str:
    # perf: an unknown name is compared with every known one; the regular expression costs four times as much.
    plain = name.casefold().replace("_", "-").replace(".", "-").replace(" ", "-")
    return _SEPARATORS.sub("-", plain) if "--" in plain or not plain.isprintable() else plain


def join_names(names: Sequence[str], limit: int = 20) -> str:
    """Return the first ``limit`` names as one text, and the number of the others."""
    shown = ", ".join(excerpt(name) for name in names[:limit])
    return f"{shown} and {len(names) - limit:,} more" if len(names) > limit else shown


def join_alternatives(names: Sequence[str]) -> str:
    """Return ``'a'``, or ``'a' or 'b'``, or ``'a', 'b' or 'c'``."""
    quoted = [quote_excerpt(name) for name in names]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} or {quoted[-1]}"


def excerpt(text: str, limit: int = 80) -> str:
    """Return ``text`` for a message: at most ``limit`` characters, all of them printable."""
    cut = text if len(text) <= limit else text[: limit - 1] + "…"
    return cut if cut.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in cut)


def quote_excerpt(text: str, limit: int = 80) -> str:
    """Return :func:`excerpt` in quotes, in those that the text does not have. Unlike in ``repr``, which would escape the
    escapes of the excerpt, a line break is ``\\n``."""
    shown = excerpt(text, limit)
    quote = '"' if "'" in shown and '"' not in shown else "'"
    return f"{quote}{shown}{quote}"


def write_json(value: object) -> str:
    """Return ``value`` as JSON for a message, with letters of all languages as they are and everything printable."""
    return excerpt(json.dumps(value, ensure_ascii=False), 1_000)


def first_sentence(text: str) -> str:
    """Shorten a peer's or a library's text to its first sentence, for use inside a sentence."""
    return text.split(". ")[0].rstrip(". \n")
