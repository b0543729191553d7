"""The request history of a service instance: a retransmission never executes a tool twice. Pure; the clock is passed in.

For each request: it runs, or it has ended with these replies. Ids of dispatchers are ``<dispatcher>-<number>-<random>`` with
ascending numbers. The property ``settled`` reports from time to time below which number all requests have ended, except a
few, so that most records are removed within milliseconds. A record that is dropped because of the limits stays excluded by
its number: its request is never executed again.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection, Mapping
from functools import lru_cache
from itertools import islice
from typing import Protocol

from dispatch.serving.deduplication.evicted_dispatchers import EvictedDispatchers

MAX_ENTRIES = 20_000
"""Ended requests at most: some seconds of a busy service; a retransmission follows within tenths."""
MAX_BYTES = 64 * 1024 * 1024
"""Bytes of their replies."""
MAX_ENTRY_BYTES = 8 * 1024 * 1024
"""Bytes stored of one running stream; the oldest chunks are dropped first. More than the largest message."""
MAX_LARGE_BYTES = 64 * 1024 * 1024
"""Bytes of ended fragmented replies, a separate limit, so that one of them does not evict all others."""
MAX_PEERS = 4_096
"""Dispatchers with stored replies. A new one evicts the one that was idle longest, of which only the highest request number
is kept."""
PEER_AGE_S = 600.0
"""Seconds without a message after which no request of a dispatcher can arrive any more."""

_UNKNOWN = 1 << 60
"""Above any request number: the dispatcher's requests are unknown."""

_PARSED = 256
"""Cached parsed ids: each is parsed three times while its request is accepted."""

Message = tuple[bytes, Mapping[str, str]]
"""A reply: payload and properties."""


class PendingSend(Protocol):
    """A reply that may be queued."""

    @property
    def waits(self) -> bool: ...


class _Peer:
    __slots__ = ("arrived", "entries", "excepted", "floor", "forgotten", "highest", "last", "running")

    def __init__(self, forgotten: int, now: float) -> None:
        self.entries: dict[int, RequestRecord] = {}
        self.arrived: deque[int] = deque()
        self.floor = 0
        """Below it all requests have ended,"""
        self.excepted: frozenset[int] = frozenset()
        """except these."""
        self.forgotten = forgotten
        """Up to it, requests without a record may have been dropped."""
        self.highest = 0
        """The highest known number."""
        self.running = 0
        self.last = now

    def settled(self, number: int) -> bool:
        """Return whether the caller has settled ``number``."""
        return number < self.floor and number not in self.excepted


class RequestRecord:
    """One request with its replies so far."""

    __slots__ = ("_number", "_peer", "dropped", "ended", "large", "limit", "messages", "size", "ticket")

    def __init__(self, peer: _Peer, number: int) -> None:
        self._peer = peer
        self._number = number
        self.messages: list[Message] = []
        self.dropped = 0
        """Replies dropped from the front."""
        self.size = 0
        self.limit = MAX_ENTRY_BYTES
        """Limit of stored bytes while it runs."""
        self.large = False
        """A reply is fragmented: no fragment is useful without the others."""
        self.ended = False
        self.ticket: PendingSend | None = None
        """The publish of the last reply, while it matters."""

    def since(self, index: int) -> list[Message] | None:
        """Return the replies from number ``index`` on; after the end at least the last one, which may be an error without an
        index. None: some of them were dropped."""
        if index < self.dropped:
            return None
        found = self.messages[index - self.dropped :]
        return found or (self.messages[-1:] if self.ended else [])


@lru_cache(maxsize=_PARSED)
def _parts(id: str) -> tuple[str, int] | None:
    name, _, rest = id.partition("-")
    number = rest.partition("-")[0]
    if not name or not number or len(number) > 15:
        return None
    try:
        return name, int(number, 16)
    except ValueError:
        return None


class RequestHistory:
    """The requests of a service instance.

    Args:
        max_entries, max_bytes: of ended requests.
        max_large: bytes of ended fragmented replies; the last one is kept regardless of its size.
        max_peers: dispatchers.
        peer_age: seconds.
    """

    def __init__(
        self,
        *,
        max_entries: int = MAX_ENTRIES,
        max_bytes: int = MAX_BYTES,
        max_large: int = MAX_LARGE_BYTES,
        max_peers: int = MAX_PEERS,
        peer_age: float = PEER_AGE_S,
    ) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._max_large = max_large
        self._max_peers = max_peers
        self._peer_age = peer_age
        self._peers: OrderedDict[str, _Peer] = OrderedDict()
        self._evicted = EvictedDispatchers(peer_age)
        self._now = 0.0
        self._ended: OrderedDict[RequestRecord, None] = OrderedDict()
        self._large: OrderedDict[RequestRecord, None] = OrderedDict()
        self._large_size = 0
        """Bytes of stored replies, and bytes reserved."""
        self.size = 0
        """Bytes of stored replies, including those of running requests."""

    def __len__(self) -> int:
        """Recorded requests."""
        return sum(len(peer.entries) for peer in self._peers.values())

    @staticmethod
    def knows(id: str) -> bool:
        """Return whether ``id`` has the form of a dispatcher's ids."""
        return _parts(id) is not None

    def find(self, id: str, now: float, *, is_again: bool = False) -> RequestRecord | bool:
        """Return the record of ``id``; True if it may have been here but was dropped; False if it is new. ``is_again``: it
        is a retransmission."""
        name, number = self._split(id)
        peer = self._peer(name, now)
        if peer.forgotten == _UNKNOWN and not is_again:
            peer.forgotten = number - 1
        entry = peer.entries.get(number)
        if entry is not None:
            if entry.ended:  # its caller waits for it: it is not evicted next
                (self._large if entry.large else self._ended).move_to_end(entry)
            return entry
        return number <= peer.forgotten or peer.settled(number)

    def begin(self, id: str, now: float) -> RequestRecord:
        """Add a record for ``id``, which is new according to :meth:`find`."""
        name, number = self._split(id)
        peer = self._peer(name, now)
        peer.highest = max(peer.highest, number)
        entry = peer.entries[number] = RequestRecord(peer, number)
        peer.arrived.append(number)
        if len(peer.arrived) > 2 * len(peer.entries) + 1_024:
            peer.arrived = deque(kept for kept in peer.arrived if kept in peer.entries)
        peer.running += 1
        return entry

    def record(self, entry: RequestRecord, message: Message, *, last: bool) -> None:
        """Store a reply to ``entry``; ``last``: it is the final one."""
        if entry.ended:
            return
        size = len(message[0])
        entry.messages.append(message)
        self._grow(entry, size)
        while entry.size > entry.limit and len(entry.messages) > 1:
            entry.dropped += 1
            self._grow(entry, -len(entry.messages.pop(0)[0]))
        if last:
            self.end(entry)
        else:
            self._make_room()

    def _make_room(self) -> None:
        while self._ended and (len(self._ended) > self._max_entries or self.size - self._large_size > self._max_bytes):
            self._forget(self._ended)
        while len(self._large) > 1 and self._large_size > self._max_large:
            self._forget(self._large)

    def widen(self, entry: RequestRecord, size: int, most: int) -> None:
        """Raise the limit of ``entry`` by ``size`` bytes, up to ``most`` bytes more than for others: for a fragmented
        reply."""
        entry.limit = min(entry.limit + size, MAX_ENTRY_BYTES + most)
        if not entry.large:
            entry.large = True
            self._large_size += entry.size

    def _grow(self, entry: RequestRecord, size: int) -> None:
        entry.size += size
        self.size += size
        if entry.large:
            self._large_size += size

    def _forget(self, ended: OrderedDict[RequestRecord, None]) -> None:
        oldest = next(iter(ended))
        oldest._peer.forgotten = max(oldest._peer.forgotten, oldest._number)
        self._drop(oldest)

    def undo(self, entry: RequestRecord) -> None:
        """Remove ``entry``, which was neither executed nor answered: it may be sent again."""
        if not entry.ended:
            entry._peer.running -= 1
            entry._peer.entries.pop(entry._number, None)

    def end(self, entry: RequestRecord) -> None:
        """Record the end of ``entry``."""
        if entry.ended:
            return
        entry.ended = True
        entry._peer.running -= 1
        (self._large if entry.large else self._ended)[entry] = None
        if entry._peer.settled(entry._number):
            self._drop(entry)
        self._make_room()
        self._evict_idle()

    def leave(self, id: str, now: float) -> None:
        """Evict the dispatcher of ``id``, which closes, unless a request of it runs."""
        name, _ = self._split(id)
        peer = self._peers.get(name)
        if peer is not None and not peer.running:
            self._now = now
            self._evict(name, peer)

    def settled(self, id: str, below: int, now: float, excepted: Collection[int] = ()) -> None:
        """Record that all requests of the dispatcher of ``id`` below the number ``below`` have ended, except
        ``excepted``."""
        name, number = self._split(id)
        peer = self._peer(name, now)
        below = min(below, number)
        if below < peer.floor:
            return  # an earlier message has settled more
        # A late message must not undo a settlement.
        still = frozenset(each for each in excepted if each < below and not peer.settled(each))
        if below == peer.floor:
            still &= peer.excepted
        no_longer = [each for each in peer.excepted if each not in still]
        peer.floor, peer.excepted = below, still
        arrived = peer.arrived
        while arrived and arrived[0] < below:
            no_longer.append(arrived.popleft())
        for each in no_longer:
            entry = peer.entries.get(each)
            if entry is not None and entry.ended and each not in still:
                self._drop(entry)

    def _split(self, id: str) -> tuple[str, int]:
        parts = _parts(id)
        if parts is None:
            raise ValueError(f"not an id of a dispatcher: {id!r}")
        return parts

    def _drop(self, entry: RequestRecord) -> None:
        (self._large if entry.large else self._ended).pop(entry, None)
        entry._peer.entries.pop(entry._number, None)
        self._grow(entry, -entry.size)

    def _peer(self, name: str, now: float) -> _Peer:
        self._now = now
        peer = self._peers.get(name)
        if peer is not None:
            self._peers.move_to_end(name)
            peer.last = now
            return peer
        self._forget_silent(now)
        forgotten = self._evicted.pop(name, now)
        if forgotten is None:
            # It may have been evicted and dropped: then its executed requests have lower numbers than its next new one.
            forgotten = _UNKNOWN if self._evicted.is_uncertain(now) else 0
        peer = self._peers[name] = _Peer(forgotten, now)
        self._evict_idle(peer)
        return peer

    def _evict_idle(self, new: _Peer | None = None) -> None:
        """Evict the dispatchers that were idle longest, except the ``new`` one, while there are too many. Dispatchers with
        running requests stay; the server limits those."""
        while len(self._peers) > self._max_peers:
            idle = next((each for each in self._peers.items() if not each[1].running), None)
            if idle is None or idle[1] is new:
                return
            self._evict(*idle)

    def _evict(self, name: str, peer: _Peer) -> None:
        for entry in list(peer.entries.values()):
            self._drop(entry)
        del self._peers[name]
        may_have_run = max(peer.highest, peer.forgotten, peer.floor - 1)
        if 0 < may_have_run < _UNKNOWN:
            self._evicted.add(name, may_have_run, self._now)

    def _forget_silent(self, now: float) -> None:
        for name in tuple(islice(self._peers, 2)):  # two at a time: bounded work, and space for at least one
            peer = self._peers[name]
            if peer.running:
                self._peers.move_to_end(name)  # it is heard of again, at the latest when that has ended
                peer.last = now
            elif now - peer.last >= self._peer_age:
                for entry in list(peer.entries.values()):
                    self._drop(entry)
                del self._peers[name]
            else:
                return
