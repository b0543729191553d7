"""The interface of a source of descriptors, and what the registry reports about each source."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Literal, Protocol

import msgspec

from dispatch.catalog.readers.item import Item

SourceState = Literal["ok", "stale", "failed"]
OnChange = Literal["apply", "hold"]


class Source(Protocol):
    """A source of descriptors. A source may also have these attributes; each has a default:

    - ``is_atomic`` (False): its items are accepted as a whole or not at all. Otherwise an invalid item alone is refused.
    - ``namespace`` (""): prefix of its names and service ids: ``crm`` makes ``find`` into ``crm-find``.
    - ``on_change`` ("apply"): ``hold``: a changed definition waits for its approval, and the former one stays in force.
    - ``connect(broker)``: called once before the first :meth:`discover` of a source that needs the broker, with a
      :class:`~dispatch.catalog.sources.broker.Broker`.
    - ``executor``: executes the tools of its local service in this process
      (:class:`~dispatch.calls.invokers.local_executor.LocalExecutor`).
    - ``use_providers(providers)``: called before :meth:`discover`, with what the dispatcher provides to functions.
    - ``async close()``: called once when the source is removed or the dispatcher is closed.
    """

    @property
    def id(self) -> str:
        """Unique in a dispatcher; the label ``source`` of its metrics."""

    async def discover(self) -> Sequence[Item]:
        """Return all items. An item that did not change should be the same object as before: it is not read again.

        Raises:
            CatalogError: the items cannot be used; it lists the problems. The former items stay in force.
            Exception: the source is out of reach. The former items stay in force, and the registry tries again.
        """

    def changes(self) -> AsyncIterator[object]:
        """Return an iterator whose every element means: call :meth:`discover` again. The registry begins to iterate before
        it calls :meth:`discover`, so that no change is missed. It ends, or raises, when the source is out of reach."""


class SourceGroup(Protocol):
    """Several sources that are given as one, such as the servers in one file."""

    @property
    def sources(self) -> Sequence[Source]:
        """The sources, the highest precedence first."""


class SourceStatus(msgspec.Struct, frozen=True):
    """The state of one source.

    Attributes:
        id: of the source.
        state: ``ok``; ``stale``: out of reach or invalid, its last valid items are in force; ``failed``: it has none.
        since: when that state began, in seconds since the epoch.
        items: number of its items in force: services and tools.
        tools: number of its tools in force.
        problem: the last problem, in one line; empty: none.
        refused: number of items that are not in force, or in a former version, because they are invalid.
        held: number of changed definitions that wait for approval.
    """

    id: str
    state: SourceState
    since: float
    items: int
    tools: int
    problem: str = ""
    refused: int = 0
    held: int = 0
