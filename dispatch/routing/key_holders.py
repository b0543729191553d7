"""Affinity of idempotency keys: each instance remembers its own keys, so a key goes to the instance that may have executed
it, as long as that instance is known.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

MAX_KEYS = 10_000
"""Keys remembered, the latest ones; an instance remembers as many."""


class Holder(NamedTuple):
    """One incarnation of an instance; a later one has no history."""

    name: str
    incarnation: str


class KeyHolders:
    """The holders of the keys of one service. Bounded."""

    def __init__(self) -> None:
        self._holders: OrderedDict[tuple[str, str], Holder] = OrderedDict()

    def __len__(self) -> int:
        return len(self._holders)

    def get(self, user: str, key: str) -> Holder | None:
        """Return the instance that may have executed ``key`` for ``user``; None if unknown."""
        return self._holders.get((user, key))

    def claim(self, user: str, key: str, holder: Holder) -> Claim:
        """Record that a request with ``key`` goes to ``holder`` now."""
        return Claim(self, user, key, self.put(user, key, holder), holder)

    def put(self, user: str, key: str, holder: Holder | None) -> Holder | None:
        """Set or remove the holder of ``key``. Return the previous one."""
        former = self._holders.pop((user, key), None)
        if holder is not None:
            self._holders[user, key] = holder
            if len(self._holders) > MAX_KEYS:
                self._holders.popitem(last=False)
        return former


class Claim:
    """The change of one request to the holders; returned by :meth:`KeyHolders.claim`."""

    __slots__ = ("_former", "_holders", "_key", "_user", "holder")

    def __init__(self, holders: KeyHolders, user: str, key: str, former: Holder | None, holder: Holder) -> None:
        self._holders = holders
        self._user = user
        self._key = key
        self._former = former
        self.holder = holder

    def undo(self) -> None:
        """Restore the previous holder: the request was not executed. Keeps a holder that another request has set since."""
        if self._holders.get(self._user, self._key) is self.holder:
            self._holders.put(self._user, self._key, self._former)
