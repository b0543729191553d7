"""A thousand things people ask agents for: of a real set where there is one, else made up, the same ones each time."""

from __future__ import annotations

import csv
import itertools
import os
from pathlib import Path

COUNT = 1_000
VARIABLE = "DISPATCH_QUERIES"
BESIDE_THE_REPOSITORY = Path(__file__).resolve().parents[4] / "shared" / "data" / "metatool" / "queries.csv"

_WISHES = (
    "Can you find me",
    "I'm looking for",
    "Please compare the prices of",
    "What do people say about",
    "Summarise, in 3 points, what is known about",
    "I need help with",
    "Where would I get",
    'Explain "as to a child"',
    "¿Me puedes recomendar",
    "Translate into Arabic (العربية):",
)
_THINGS = (
    "a quiet café with Wi-Fi",
    "wheelchair-accessible flats",
    "a recipe for crème brûlée",
    "train tickets under 50 € / £45",
    "the smart contract at 0x00=ff",
    "podcasts on C++ & Rust",
    "a gift for a friend who does yoga 🧘",
    "the EUR/USD sentiment (10-minute candles)",
    "Schrödinger's equation",
    "a 100% wool jumper, size {M}",
)
_PLACES = (
    "in Zürich?",
    "near Port Road, from Main Street to the roundabout?",
    "in 東京, tomorrow",
    "for next week -- thanks!",
    "for my parents, who are over 70",
    "that my boss won't find boring…",
    "as of 2024-05-01",
    "\\ or anything like it",
    "for 3 < n < 5 people",
    "in São Paulo; it is urgent!!!",
)


def queries(source: Path | None = None) -> list[str]:
    """A thousand different queries.

    Args:
        source: a CSV file with a column ``query``; None: the file that ``DISPATCH_QUERIES`` names, else the real set beside
            the repository if it is there, else made-up ones.

    Raises:
        ValueError: the file that was asked for is not there, or holds too few.
    """
    if source is None and (named := os.environ.get(VARIABLE)):
        source = Path(named)
    if source is not None:
        return _read(source)
    return _read(BESIDE_THE_REPOSITORY) if BESIDE_THE_REPOSITORY.is_file() else generated()


def generated() -> list[str]:
    """Made-up queries, realistic in length and in the characters that give trouble."""
    return [" ".join(parts) for parts in itertools.product(_WISHES, _THINGS, _PLACES)]


def _read(source: Path) -> list[str]:
    if not source.is_file():
        raise ValueError(
            f"there is no file {source}: let {VARIABLE} name a CSV file with a column 'query', or unset it"
        )
    with source.open(newline="", encoding="utf-8") as file:
        distinct = list(dict.fromkeys(row["query"] for row in csv.DictReader(file) if row.get("query")))
    if len(distinct) < COUNT:
        raise ValueError(f"{source} has {len(distinct)} different queries in a column 'query', not {COUNT}")
    # Some that are not plain ASCII, then from everywhere in the file, which is sorted by tool.
    odd = [query for query in distinct if not query.isascii()][: COUNT // 10]
    everywhere = distinct[:: len(distinct) // COUNT]
    return list(dict.fromkeys(odd + everywhere))[:COUNT]
