"""Which instance of a service may have done the work of an idempotency key. An instance remembers keys, and others do not:
the same key goes to the same instance, for as long as that is known.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

MAX_KEYS = 10_000
"""Keys remembered, the latest ones: as many as an instance remembers."""


class Holder(NamedTuple):
    """One life of an instance: a later one remembers nothing."""

    name: str
    incarnation: str


class KeyHolders:
    """The holders of the keys of one service. Bounded."""

    def __init__(self) -> None:
        self._holders: OrderedDict[tuple[str, str], Holder] = OrderedDict()

    def __len__(self) -> int:
        return len(self._holders)

    def get(self, user: str, key: str) -> Holder | None:
        """The instance that may have done the work of ``key`` for ``user``."""
        return self._holders.get((user, key))

    def claim(self, user: str, key: str, holder: Holder) -> Claim:
        """Record that a request with ``key`` goes to ``holder`` now."""
        return Claim(self, user, key, self.put(user, key, holder), holder)

    def put(self, user: str, key: str, holder: Holder | None) -> Holder | None:
        """Set the holder of ``key``; None: it has none. Returns the former one."""
        former = self._holders.pop((user, key), None)
        if holder is not None:
            self._holders[user, key] = holder
            if len(self._holders) > MAX_KEYS:
                self._holders.popitem(last=False)
        return former


class Claim:
    """What one request changed. Made by :meth:`KeyHolders.claim`."""

    __slots__ = ("_former", "_holders", "_key", "_user", "holder")

    def __init__(self, holders: KeyHolders, user: str, key: str, former: Holder | None, holder: Holder) -> None:
        self._holders = holders
        self._user = user
        self._key = key
        self._former = former
        self.holder = holder

    def undo(self) -> None:
        """The request did not run: the key is where it was before, unless another request has been sent since."""
        if self._holders.get(self._user, self._key) is self.holder:
            self._holders.put(self._user, self._key, self._former)
