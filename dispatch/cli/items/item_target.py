"""Names of items on the command line: ``tool/NAME``, ``tool-service/ID``, or TrustGraph's ``--type`` and ``--key``."""

from __future__ import annotations

from typing import NamedTuple

from dispatch._internal.suggestions import excerpt, find_near_names
from dispatch.catalog.readers.item import KINDS
from dispatch.cli.exit_codes import CliError

_FORM = "write tool/NAME or tool-service/ID, or --type tool --key NAME"


class ItemTarget(NamedTuple):
    """The place of an item.

    Attributes:
        kind: ``tool`` or ``tool-service``.
        key: its name or id; with a version: ``NAME@VERSION``.
    """

    kind: str
    key: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.key}"


def parse_target(word: str | None, kind: str | None, key: str | None) -> ItemTarget:
    """Return the item that is named by one word, or by a kind and a key.

    Raises:
        CliError: neither, or both, or no such kind.
    """
    if word is not None and (kind is not None or key is not None):
        raise CliError("The item is given twice.", _FORM)
    if word is not None:
        kind, separator, key = word.partition("/")
        if not separator:
            raise CliError(f"'{excerpt(word)}' is no item.", _FORM)
    if kind is None or not key:
        raise CliError("No item is given.", _FORM)
    if kind not in KINDS:
        near = find_near_names(kind, KINDS, 1)
        raise CliError(
            f"'{excerpt(kind)}' is no kind of item.",
            f"write {near[0]}/{excerpt(key)}" if near else f"use {' or '.join(KINDS)}",
        )
    return ItemTarget(kind, key)
