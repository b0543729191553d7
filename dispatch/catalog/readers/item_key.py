"""Keys of items: ``NAME``, or ``NAME@VERSION`` for one of several versions."""

from __future__ import annotations

from typing import NamedTuple

from dispatch.catalog.versions import is_version


class ItemKey(NamedTuple):
    """The parts of the key under which an item is stored.

    Attributes:
        name: the default of the item's id or name.
        version: the default of its version; None: the key has none.
    """

    name: str
    version: str | None

    @classmethod
    def parse(cls, key: str) -> ItemKey:
        """Split ``key`` at its last ``@``, if a SemVer version follows it; an ``@`` before anything else is part of the
        name, as in TrustGraph."""
        name, separator, version = key.rpartition("@")
        return cls(name, version) if separator and name and is_version(version) else cls(key, None)
