"""What a call, and an attempt of it, tells of itself while it goes: recorded as spans, or only its context travels.

The spans are in :mod:`~dispatch.telemetry.tracing.call_spans`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Protocol

import msgspec

from dispatch.errors import DispatchError, Outcome
from dispatch.result import CallResult


class SendTrace(Protocol):
    """One attempt."""

    @property
    def properties(self) -> Mapping[str, str]:
        """What its request carries."""

    def ended(self, outcome: Outcome, error: DispatchError | None, instance: str | None, transmissions: int) -> None:
        """It is over."""


class CallTrace(Protocol):
    """One call."""

    @property
    def carried(self) -> Mapping[str, str] | None:
        """What each of its requests carries, if nothing is recorded; None: :meth:`send` has that, and makes a span."""

    @property
    def records_content(self) -> bool:
        """Is :meth:`content` of any use?"""

    @property
    def exemplar(self) -> dict[str, str] | None:
        """What a measurement of the call points with; None: its span is not sampled."""

    def send(self, topic: str, template: str, id: str, number: int, reason: str) -> SendTrace:
        """An attempt begins: a request with that ``id`` to ``topic``, which is one of those of ``template``."""

    def event(self, name: str, attributes: Mapping[str, str | float]) -> None:
        """Something happened to the call."""

    def content(self, kind: str, text: str) -> None:
        """Its ``arguments``, or its ``result``, which may be recorded."""

    def first_chunk(self, seconds: float) -> None:
        """A stream has begun."""

    def ended(self, result: CallResult, reply: Mapping[str, str]) -> None:
        """The call is over; ``reply``: the properties of its last reply."""

    def left(self, attempts: int) -> None:
        """It was cancelled, or its stream was left, after so many attempts."""


class Passed(msgspec.Struct, eq=False, gc=False):
    """A call, and an attempt of it, of which only the context travels."""

    carried: Mapping[str, str]

    exemplar = None
    records_content = False

    @property
    def properties(self) -> Mapping[str, str]:
        return self.carried

    def send(self, topic: str, template: str, id: str, number: int, reason: str) -> SendTrace:
        return self

    def event(self, name: str, attributes: Mapping[str, str | float]) -> None:
        pass

    def content(self, kind: str, text: str) -> None:
        pass

    def first_chunk(self, seconds: float) -> None:
        pass

    def ended(self, *_: object) -> None:
        pass

    def left(self, attempts: int) -> None:
        pass


def unsampled() -> Iterator[str]:
    """The ``traceparent`` of calls that begin no trace: their services are told so, each time with a trace id of its own.

    Random digits are drawn for 256 at once, which takes a third of the time. Those that differ are the first that a sampler
    by trace id looks at, if a service has one that does not ask for the flag: it takes its share of them.
    """
    while True:
        before = f"00-{random.getrandbits(64):016x}"
        after = f"{random.getrandbits(56):014x}-{random.getrandbits(64) | 1:016x}-00"
        for digits in _DIGITS:
            yield f"{before}{digits}{after}"


_DIGITS = tuple(f"{number:02x}" for number in range(256))
