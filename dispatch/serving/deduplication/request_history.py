"""What a service remembers of requests, so that asking twice never runs a tool twice. Pure bookkeeping, clock handed in.

Per request: it runs, or it has ended and these were its replies. Ids of our dispatchers are
``<dispatcher>-<number>-<random>``, the number counting up; a dispatcher says now and then below which number it waits for
nothing any more, but for a few that it names, so that most entries go within milliseconds. Whatever is dropped for want of
room stays forbidden by its number: it is never run again.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection, Mapping
from functools import lru_cache
from itertools import islice
from typing import Protocol

from dispatch.serving.deduplication.evicted_dispatchers import EvictedDispatchers

MAX_ENTRIES = 20_000
"""Ended requests remembered at most: seconds of a busy service, where a repair takes tenths."""
MAX_BYTES = 64 * 1024 * 1024
"""Bytes of their replies."""
MAX_ENTRY_BYTES = 8 * 1024 * 1024
"""Bytes kept of one running stream; its oldest chunks go first. More than the largest single message."""
MAX_LARGE_BYTES = 64 * 1024 * 1024
"""The same of ended answers that went in parts, so that one of them does not cost all others their place."""
MAX_PEERS = 4_096
"""Dispatchers remembered at once, with what was answered to them. For a new one the one that was idle longest is evicted:
of that, only the highest request number is kept."""
PEER_AGE_S = 600.0
"""A dispatcher that was silent for so long has no request on its way here any more."""

_UNKNOWN = 1 << 60
"""More than any number: nothing is known of what the dispatcher sent."""

_PARSED = 256
"""Ids kept in parts: each is asked for three times, in the turn of the loop in which its request arrives."""

Message = tuple[bytes, Mapping[str, str]]
"""A reply: payload and properties."""


class PendingSend(Protocol):
    """What can still be waiting to leave."""

    @property
    def waits(self) -> bool: ...


class _Peer:
    __slots__ = ("arrived", "entries", "excepted", "floor", "forgotten", "highest", "last", "running")

    def __init__(self, forgotten: int, now: float) -> None:
        self.entries: dict[int, RequestRecord] = {}
        self.arrived: deque[int] = deque()
        self.floor = 0
        """Below it nothing is waited for,"""
        self.excepted: frozenset[int] = frozenset()
        """but for these."""
        self.forgotten = forgotten
        """Up to it, what is not in ``entries`` may have been dropped."""
        self.highest = 0
        """The highest number that has begun."""
        self.running = 0
        self.last = now

    def settled(self, number: int) -> bool:
        """Does nobody wait for ``number`` any more?"""
        return number < self.floor and number not in self.excepted


class RequestRecord:
    """One request: its replies so far."""

    __slots__ = ("_number", "_peer", "dropped", "ended", "large", "limit", "messages", "size", "ticket")

    def __init__(self, peer: _Peer, number: int) -> None:
        self._peer = peer
        self._number = number
        self.messages: list[Message] = []
        self.dropped = 0
        """Replies at the front that are no longer kept."""
        self.size = 0
        self.limit = MAX_ENTRY_BYTES
        """Bytes kept while it runs."""
        self.large = False
        """A text went in parts: no part is of use without the others."""
        self.ended = False
        self.ticket: PendingSend | None = None
        """The last reply on its way, while that is of interest."""

    def since(self, index: int) -> list[Message] | None:
        """The replies from number ``index`` on; always the last one when the request has ended, which an error without an
        index may be. None: some of them are no longer kept."""
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
        max_large: bytes of ended answers that went in parts; the last one is kept whatever its size.
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
        """Bytes of what is in there, and of what will be."""
        self.size = 0
        """Bytes of replies kept, those of running requests included."""

    def __len__(self) -> int:
        """Requests remembered."""
        return sum(len(peer.entries) for peer in self._peers.values())

    @staticmethod
    def knows(id: str) -> bool:
        """Has ``id`` the form that our dispatchers give?"""
        return _parts(id) is not None

    def find(self, id: str, now: float, *, is_again: bool = False) -> RequestRecord | bool:
        """The entry of ``id``; True: it may have been here, but is forgotten; False: it never was. ``is_again``: it is a
        retransmission."""
        name, number = self._split(id)
        peer = self._peer(name, now)
        if peer.forgotten == _UNKNOWN and not is_again:
            peer.forgotten = number - 1
        entry = peer.entries.get(number)
        if entry is not None:
            if entry.ended:  # somebody waits for it: it is not the next to go for want of room
                (self._large if entry.large else self._ended).move_to_end(entry)
            return entry
        return number <= peer.forgotten or peer.settled(number)

    def begin(self, id: str, now: float) -> RequestRecord:
        """``id``, which :meth:`find` never saw, begins."""
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
        """A reply to ``entry`` was sent; ``last``: it ended with that."""
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
        """Keep ``size`` bytes more of ``entry``, and ``most`` more than of others in all: of a text that goes in parts."""
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
        """``entry`` never ran, and nothing was said about it: it may begin again."""
        if not entry.ended:
            entry._peer.running -= 1
            entry._peer.entries.pop(entry._number, None)

    def end(self, entry: RequestRecord) -> None:
        """``entry`` runs no more."""
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
        """The dispatcher of ``id`` says that it sends no more: evict it, unless a request of it runs."""
        name, _ = self._split(id)
        peer = self._peers.get(name)
        if peer is not None and not peer.running:
            self._now = now
            self._evict(name, peer)

    def settled(self, id: str, below: int, now: float, excepted: Collection[int] = ()) -> None:
        """The dispatcher of ``id`` waits for nothing with a number under ``below`` any more, except for ``excepted``."""
        name, number = self._split(id)
        peer = self._peer(name, now)
        below = min(below, number)
        if below < peer.floor:
            return  # it said more than that already
        # What once was settled stays so, whatever comes late.
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
            # It may have been evicted, and that be forgotten: then what ran has a lower number than the next request that it
            # sends for the first time.
            forgotten = _UNKNOWN if self._evicted.is_uncertain(now) else 0
        peer = self._peers[name] = _Peer(forgotten, now)
        self._evict_idle(peer)
        return peer

    def _evict_idle(self, new: _Peer | None = None) -> None:
        """Evict the dispatchers that were idle longest, but not the ``new`` one, while there are too many. Those whose
        requests run stay, even if that is too many: the service bounds how many run."""
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
        for name in tuple(islice(self._peers, 2)):  # a little each time: bounded work, and room for one at the least
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
