"""The protocol of a compared system: a module of :mod:`benchmarks.peers.systems` serves a tool and calls it."""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast

SERVICE = "digest"
"""Name of the tool and its service."""

Tool = Callable[[dict[str, Any]], Awaitable[str]]
"""The tool: from the arguments of a call to its text."""


@dataclass(frozen=True)
class Place:
    """Where the processes of a system meet.

    Attributes:
        url: the broker or server; empty where clients connect to instances.
        topic: prefix of topics or subjects, of this run alone.
        ports: the port of each instance, in systems without a broker or server.
        timeout: seconds for a whole call.
        listener: file descriptor of a socket that all instances of a system over HTTP accept from; -1: none.
        concurrency: calls that an instance executes at once; the system's own limit, where it has one.
    """

    url: str
    topic: str
    ports: tuple[int, ...] = ()
    timeout: float = 5.0
    listener: int = -1
    concurrency: int = 1_024


@dataclass(frozen=True)
class Failure:
    """What a caller can read from an error.

    Attributes:
        kind: the error's type or code.
        is_refused: the error says that the tool was certainly not executed.
    """

    kind: str
    is_refused: bool = False


class Call(Protocol):
    """Make one call. A call that is not ``repeatable`` must not be executed twice."""

    async def __call__(self, arguments: dict[str, Any], *, repeatable: bool) -> str: ...


class System(Protocol):
    """A compared system, run as its own documentation says.

    Attributes:
        LABEL: name and versions in a few words.
        OFFERS: what it does beside the exchange of a request and a reply.
        SERVER: what its processes connect to; ``http``: clients connect to a socket from which all instances accept;
            empty: to each instance.
    """

    LABEL: str
    OFFERS: str
    SERVER: Literal["pulsar", "nats", "redis", "http", ""]

    def serve(self, place: Place, instance: int, tool: Tool) -> AbstractAsyncContextManager[None]:
        """Serve the tool as one of the instances. Leaving the context stops gracefully."""

    def connect(self, place: Place) -> AbstractAsyncContextManager[Call]:
        """Connect a client."""

    def read_failure(self, error: Exception) -> Failure:
        """Return what the error says."""


def load(name: str) -> System:
    """Return a system by the name of its module."""
    return cast(System, importlib.import_module(f"benchmarks.peers.systems.{name}"))
