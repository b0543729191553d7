"""The items that a program puts: keys and replacement."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dispatch._internal.suggestions import excerpt
from dispatch.catalog.errors import CatalogError, Problem
from dispatch.catalog.live.merge import Merger
from dispatch.catalog.live.source_list import PUT
from dispatch.catalog.readers.item import KINDS, Item


def put_item(merger: Merger, kind: str, raw: Mapping[str, Any]) -> None:
    """Add an item, or replace the one with its name and version.

    Raises:
        CatalogError: it is invalid; nothing has changed.
    """
    key = _key_of(kind, raw)
    item = Item(f"{PUT}:{kind}/{key}", kind, key, dict(raw))
    items = [*_without(merger, kind, key), item]
    problems = merger.set_items(PUT, items, item)
    if problems:
        raise CatalogError(problems)


def remove_item(merger: Merger, kind: str, key: str) -> None:
    """Remove an item that was put.

    Raises:
        LookupError: it was not put.
    """
    items = _without(merger, kind, key)
    if len(items) == len(merger.items(PUT)):
        raise LookupError(f"{kind} '{key}' was not put, so it stays in force. Fix: remove it from its source.")
    merger.set_items(PUT, items)


def _without(merger: Merger, kind: str, key: str) -> list[Item]:
    return [item for item in merger.items(PUT) if (item.kind, item.key) != (kind, key)]


def _key_of(kind: str, raw: Mapping[str, Any]) -> str:
    field = {"tool": "name", "tool-service": "id"}.get(kind)
    if field is None:
        raise CatalogError([Problem(PUT, "kind", f"{excerpt(repr(kind))} is not a kind", f"use {' or '.join(KINDS)}")])
    name, version = raw.get(field), raw.get("version")
    if not isinstance(name, str) or not name.strip():
        raise CatalogError([Problem(f"{PUT}:{kind}", field, f"'{field}' is missing or no text", f'add "{field}": "…"')])
    return f"{name}@{version}" if isinstance(version, str) else name
