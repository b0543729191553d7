"""The conditions of lists of tools."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypedDict

from dispatch.catalog.version_ranges import Range


class ListConditions(TypedDict, total=False):
    """The arguments of :meth:`dispatch.Catalog.list`, which describes them."""

    category: str | None
    tags_any: Iterable[str]
    service: str | None
    source: str | None
    text: str
    permission: str | None
    groups: Iterable[str] | None
    state: str | None
    version: str | Range | None
