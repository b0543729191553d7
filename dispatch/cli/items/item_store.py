"""The interface of a store of items, which ``put``, ``rm`` and ``get`` use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol

from dispatch._internal.suggestions import join_names
from dispatch.catalog import Problem
from dispatch.cli.exit_codes import CliError
from dispatch.cli.items.item_document import ItemDocument
from dispatch.cli.items.item_target import ItemTarget

NOT_STORED: Final = object()
"""Result of a search for an item that is not there."""
MAX_SHOWN: Final = 10
"""Mistakes in one error."""


class StoredItem(NamedTuple):
    """An item that was written or removed.

    Attributes:
        target: the item.
        place: its file, or its place in TrustGraph's configuration.
        existed: there was such an item before.
        warnings: of its descriptor.
    """

    target: ItemTarget
    place: str
    existed: bool
    warnings: tuple[Problem, ...] = ()


class ItemStore(Protocol):
    """Stores items. ``label`` names it in messages."""

    label: str

    def find(self, target: ItemTarget) -> Any:
        """Return the descriptor of an item as JSON values, or its text; :data:`NOT_STORED`: there is none."""

    def list_keys(self, kind: str) -> tuple[str, ...]:
        """Return the keys of all items of a kind, sorted."""

    def put(self, target: ItemTarget, document: ItemDocument) -> StoredItem:
        """Write an item that is valid; otherwise write nothing.

        Raises:
            CliError: it is invalid, or cannot be written.
        """

    def remove(self, target: ItemTarget, *, force: bool) -> StoredItem | None:
        """Remove an item; None: there is none.

        Raises:
            CliError: tools use the service and ``force`` is not set, or it cannot be removed.
        """


def refuse_write(target: ItemTarget, mistakes: Sequence[Problem]) -> CliError:
    """Return the error for an item that is invalid, or would make others invalid."""
    shown = [f"  {problem}" for problem in mistakes[:MAX_SHOWN]]
    if len(mistakes) > MAX_SHOWN:
        shown.append(f"  and {len(mistakes) - MAX_SHOWN:,} more")
    count = f"{len(mistakes)} mistake{'' if len(mistakes) == 1 else 's'}"
    return CliError("\n".join([f"{target} was not written: the catalogue would have {count}.", *shown]))


def refuse_removal(target: ItemTarget, users: Sequence[str]) -> CliError:
    """Return the error for a service that items need.

    Args:
        users: files or keys of these items.
    """
    return CliError(
        f"{target} was not removed: {join_names(users, MAX_SHOWN)} {'needs' if len(users) == 1 else 'need'} it.",
        "remove these items first, or give --force",
    )
