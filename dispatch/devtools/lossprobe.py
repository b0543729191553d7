"""Loss probe: measures how many messages a broker drops, by reply size and calls in flight, with and without sessions.

``dispatch doctor --loss`` displays it. :class:`Probe` measures on topics of its own with a service in a separate process;
plan, results and advice are pure. pulsar-client is imported when a probe starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import re
import secrets
import sys
import tempfile
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

import dispatch
from dispatch.catalog import Catalog
from dispatch.dispatcher import Dispatcher
from dispatch.errors import Outcome, TransportError
from dispatch.messaging.wire import MAX_MESSAGE_BYTES, Reply, encode_reply, encode_request
from dispatch.server import ToolServer
from dispatch.transports import Mode, Security, open_transport
from dispatch.transports.pulsar.client import OK, PulsarClient, keep_thread_state

# Plan of a measurement: reply sizes, numbers of calls in flight, and the number of calls.


DEFAULT_SIZES = "120,1k,10k,100k,1M"
DEFAULT_IN_FLIGHT = "1,16,64,256"
TOTAL_S = 60.0
"""Target duration of the whole measurement in seconds."""
MIN_RUN_S, MAX_RUN_S = 0.5, 5.0
"""Minimum and maximum seconds per run: a shorter run has too few calls, a longer one hardly changes the share of lost
calls."""

MAX_SIZE = MAX_MESSAGE_BYTES - 1_000
"""Bytes: a reply with its envelope must fit into one message."""
MAX_IN_FLIGHT = 1_024
"""Queue limit of a ToolServer; it rejects more."""
MAX_BYTES_IN_FLIGHT = 256 * 1024 * 1024
"""Bytes of replies in flight: a service buffers that many per caller and drops more."""
MAX_CALLS = 1_000_000

_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?(|k|M)B?", re.IGNORECASE | re.ASCII)
_UNITS = {"": 1, "k": 1_000, "m": 1_000_000}


class PlanError(ValueError):
    """The plan is not valid. ``fix`` names a valid one."""

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(problem)
        self.fix = fix


@dataclass(frozen=True, slots=True)
class Plan:
    """Runs of a measurement.

    Attributes:
        sizes: reply sizes in bytes, ascending.
        in_flight: numbers of concurrent calls, ascending.
        calls: calls per run; None: as many as fit into ``seconds``.
        seconds: duration in which a run starts calls; None: until ``calls`` were made.
    """

    sizes: tuple[int, ...]
    in_flight: tuple[int, ...]
    calls: int | None
    seconds: float | None

    @property
    def loads(self) -> list[tuple[int, int]]:
        """Return each size with each number in flight; each pair is run without and with sessions."""
        return [(size, in_flight) for size in self.sizes for in_flight in self.in_flight]


def make_plan(sizes: str = DEFAULT_SIZES, in_flight: str = DEFAULT_IN_FLIGHT, calls: int | None = None) -> Plan:
    """Parse the options into a plan.

    Args:
        sizes: reply sizes, separated by commas: ``120``, ``10k``, ``1.5MB``; k and M are thousands and millions.
        in_flight: numbers of concurrent calls, separated by commas.
        calls: calls per run; None: as many as fit into a share of a minute.

    Raises:
        PlanError: a size or number is not valid, or the bytes in flight exceed the limit.
    """
    wanted_sizes = _parse_list(sizes, "--sizes", parse_size, "sizes as in 120,10k,1.5MB")
    wanted_in_flight = _parse_list(in_flight, "--in-flight", _parse_in_flight, "numbers as in 1,16,64")
    most = max(wanted_in_flight)
    if max(wanted_sizes) * most > MAX_BYTES_IN_FLIGHT:
        raise PlanError(
            f"{most:,} replies of {format_size(max(wanted_sizes))} in flight exceed {MAX_BYTES_IN_FLIGHT:,} "
            "bytes, the buffer of a service per caller",
            "use smaller --sizes or --in-flight, or split the measurement",
        )
    if calls is not None and not most <= calls <= MAX_CALLS:
        raise PlanError(
            f"--calls {calls:,} is out of range with {most:,} in flight",
            f"use {most:,} to {MAX_CALLS:,} calls, or smaller --in-flight",
        )
    share = TOTAL_S / (2 * len(wanted_sizes) * len(wanted_in_flight))
    seconds = None if calls is not None else min(max(share, MIN_RUN_S), MAX_RUN_S)
    return Plan(wanted_sizes, wanted_in_flight, calls, seconds)


def parse_size(text: str) -> int:
    """Parse a size in bytes.

    Raises:
        ValueError: not a size, or too large for a message.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"'{text}' is not a size")
    size = Decimal(match[1]) * _UNITS[match[2].lower()]
    if size != int(size) or not 1 <= size <= MAX_SIZE:
        raise ValueError(f"'{text}' is not a whole number of bytes from 1 to {MAX_SIZE:,}")
    return int(size)


def format_size(size: int) -> str:
    """Format a size exactly: ``120 B``, ``1.5 kB``, ``1 MB``."""
    for unit, factor in (("MB", 1_000_000), ("kB", 1_000)):
        if size >= factor:
            number = f"{Decimal(size) / factor:f}"
            return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {unit}"
    return f"{size} B"


def _parse_in_flight(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 6 and 1 <= int(text) <= MAX_IN_FLIGHT):
        raise ValueError(f"'{text}' is not a whole number from 1 to {MAX_IN_FLIGHT:,}")
    return int(text)


def _parse_list(text: str, option: str, parse: Callable[[str], int], example: str) -> tuple[int, ...]:
    try:
        return tuple(sorted({parse(part.strip()) for part in text.split(",")}))
    except ValueError as error:
        raise PlanError(f"{option} {text}: {error}", f"use {example}") from None


# Results of a measurement.


Variant = Literal["plain", "session"]
"""The measured exchange: pulsar-client on both sides, in its ordinary use; Dispatcher and ToolServer."""
VARIANTS: Final[dict[Variant, str]] = {"plain": "without sessions", "session": "with sessions"}
"""Each in words."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """Result of one run: one variant, size and number in flight.

    Attributes:
        calls: calls made.
        lost: calls without a reply.
        seconds: from the first request to the last reply.
        errors: calls that failed with an error, by type; they do not count as lost.
    """

    calls: int
    lost: int
    seconds: float
    errors: Mapping[str, int] = field(default_factory=dict)

    @property
    def answered(self) -> int:
        """Return the number of calls with a correct reply."""
        return self.calls - self.lost - sum(self.errors.values())

    @property
    def share(self) -> float:
        """Return the share of lost calls, 0 to 1."""
        return self.lost / self.calls if self.calls else 0.0

    @property
    def rate(self) -> float:
        """Return replies per second."""
        return self.answered / self.seconds if self.seconds > 0 else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for ``--json``."""
        return {
            "calls": self.calls,
            "lost": self.lost,
            "lost_share": self.share,
            "calls_per_second": self.rate,
            "seconds": self.seconds,
            "errors": dict(self.errors),
        }


@dataclass(slots=True)
class Measurement:
    """Runs of both variants at one size and number in flight; None: not measured (yet).

    Attributes:
        size: reply size in bytes.
        in_flight: concurrent calls.
        plain: run without sessions.
        session: run with sessions.
    """

    size: int
    in_flight: int
    plain: RunResult | None = None
    session: RunResult | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for ``--json``."""
        runs = {"without_sessions": self.plain, "with_sessions": self.session}
        described = {name: None if run is None else run.as_dict() for name, run in runs.items()}
        return {"size": self.size, "in_flight": self.in_flight, **described}


def count_lost_calls(runs: Iterable[RunResult | None]) -> tuple[int, int]:
    """Count lost calls and all calls over the runs."""
    known = [run for run in runs if run is not None]
    return sum(run.lost for run in known), sum(run.calls for run in known)


def format_share(lost: int, calls: int) -> str:
    """Format a share with two digits, such as ``4.1 %``; never 0 % with a loss, never 100 % with a reply."""
    if lost == 0:
        return "0 %"
    percent = 100 * lost / calls
    for digits, least in ((0, 9.95), (1, 0.995), (2, 0.0995), (3, 0.00995)):
        if percent >= least:
            text = f"{percent:.{digits}f}"
            return "> 99 %" if text == "100" and lost < calls else f"{text} %"
    return "< 0.01 %"


# Closed-loop load: a number of callers, each with one call in flight; the same loop for both variants.


SILENCE_S = 3.0
"""Seconds without any reply after which calls that have waited as long count as lost: longer than pauses of a broker's
garbage collection or a busy machine, and longer than the dispatcher takes to request a retransmission."""
MAX_SILENCES = 2
"""Consecutive silences after which the run ends: the service is not reachable."""


class LostCallError(Exception):
    """The call is lost: no reply will arrive."""


class FailedCallError(Exception):
    """The call failed with an error. ``type`` is its short name."""

    def __init__(self, type: str) -> None:
        super().__init__(type)
        self.type = type


class Load:
    """One run. A call is lost if it raises :class:`LostCallError` or waits through a silence.

    Args:
        call: makes one call and returns when its reply has arrived.
        in_flight: number of callers.
        calls: maximum number of calls; None: no limit.
        seconds: duration in which calls are started; None: until ``calls`` were made.
    """

    def __init__(
        self, call: Callable[[], Awaitable[None]], *, in_flight: int, calls: int | None, seconds: float | None
    ) -> None:
        self._call = call
        self._in_flight = in_flight
        self._calls = calls
        self._seconds = seconds
        self._clock = asyncio.get_running_loop().time
        self._end: float | None = None
        self._started_at: dict[asyncio.Timeout, float] = {}
        self._begun = self._lost = self._silences = 0
        self._errors: Counter[str] = Counter()
        self._last_activity = 0.0

    async def run(self) -> RunResult:
        """Run the load."""
        started = self._last_activity = self._clock()
        if self._seconds is not None:
            self._end = started + self._seconds
        watcher = asyncio.create_task(self._expire_silent_calls())
        try:
            async with asyncio.TaskGroup() as callers:
                for _ in range(self._in_flight):
                    callers.create_task(self._caller())
        finally:
            watcher.cancel()
            await asyncio.wait([watcher])
        return RunResult(self._begun, self._lost, self._last_activity - started, dict(self._errors))

    def _should_continue(self) -> bool:
        return (
            (self._calls is None or self._begun < self._calls)
            and (self._end is None or self._clock() < self._end)
            and self._silences < MAX_SILENCES
        )

    async def _caller(self) -> None:
        while self._should_continue():
            self._begun += 1
            try:
                async with asyncio.timeout(None) as limit:
                    self._started_at[limit] = self._clock()
                    try:
                        await self._call()
                    finally:
                        self._started_at.pop(limit, None)
            except (LostCallError, TimeoutError):
                self._lost += 1
            except FailedCallError as failure:
                self._errors[failure.type] += 1
                self._record_activity()
                await asyncio.sleep(0)  # an immediate failure must not starve the event loop
            else:
                self._record_activity()

    def _record_activity(self) -> None:
        self._last_activity = self._clock()
        self._silences = 0

    async def _expire_silent_calls(self) -> None:
        last_silence = self._last_activity
        while True:
            await asyncio.sleep(SILENCE_S / 12)
            now = self._clock()
            if now - self._last_activity < SILENCE_S:
                continue
            overdue = [limit for limit, started_at in self._started_at.items() if now - started_at >= SILENCE_S]
            for limit in overdue:
                del self._started_at[limit]
                limit.reschedule(now)
            if overdue and now - last_silence >= SILENCE_S:
                last_silence = now
                self._silences += 1


# Request and reply with pulsar-client alone: the baseline for the loss probe and for the benchmarks.
#
# ``send_async`` and listeners (the faster of pulsar-client's two interfaces), unbatched, without flow control,
# retransmissions or deduplication. Payloads are encoded beforehand and not decoded. Only opening topics, with token and
# TLS, is dispatch's.


ID, FAILED = "id", "failed"
REQUEST = encode_request("{}", "{}")
NO_PROPERTIES: Mapping[str, str] = {}


class PlainService:
    """A listener on pulsar-client's thread that replies at once. It keeps the thread's state, which costs least, so that a
    measurement shows the client or the broker and not this service.

    Args:
        url: the broker.
        security: token and TLS settings.
        reply: returns the payload of the reply for the properties of a request.
    """

    def __init__(self, url: str, security: Security, reply: Callable[[Mapping[str, str]], bytes]) -> None:
        self._client = PulsarClient(url, security)
        self._reply = reply

    async def open(self, requests: str, responses: str) -> None:
        """Listen on the topic ``requests`` and reply on ``responses``. May be called for several pairs of topics.

        Raises:
            TransportError: the topics cannot be opened.
        """
        producer = await self._client.producer(responses)
        await self._client.consumer(requests, Mode.SHARED, "echo-request", partial(self._on_message, producer))

    def _on_message(self, producer: Any, _consumer: Any, message: Any) -> None:
        keep_thread_state()
        # An exception in pulsar-client's thread would end the process. A call without a reply is counted by its caller.
        with contextlib.suppress(Exception):
            properties = message.properties()
            id = properties[ID]
            producer.send_async(self._reply(properties), partial(self._on_receipt, producer, id), properties={ID: id})

    def _on_receipt(self, producer: Any, id: str, result: Any, _message_id: Any) -> None:
        keep_thread_state()
        if result != OK:
            with contextlib.suppress(Exception):  # as above
                producer.send_async(b"", _ignore_receipt, properties={ID: id, FAILED: result.name})

    async def close(self) -> None:
        """Close the connection."""
        await self._client.close()


class PlainClient:
    """The least that is usable as a client: a future for each call, correlated by id.

    Args:
        url: the broker.
        security: token and TLS settings.
    """

    def __init__(self, url: str, security: Security) -> None:
        self._loop = asyncio.get_running_loop()
        self._client = PulsarClient(url, security)
        self._producer: Any = None
        self._pending: dict[int, asyncio.Future[bytes]] = {}
        self._arrived: deque[Any] = deque()
        self._refused: deque[tuple[int, str]] = deque()
        self._is_waking = False
        self._count = 0

    async def open(self, requests: str, responses: str) -> None:
        """Publish to the topic ``requests`` and listen on ``responses``.

        Raises:
            TransportError: the topics cannot be opened.
        """
        self._producer = await self._client.producer(requests)
        await self._client.consumer(responses, Mode.FANOUT, "plain-client", self._on_message)

    async def call(
        self, payload: bytes, properties: Mapping[str, str] = NO_PROPERTIES, *, timeout: float | None = None
    ) -> bytes:
        """Send a request and return the payload of its reply.

        Args:
            payload, properties: of the request; the id is added.
            timeout: seconds; None: no limit.

        Raises:
            FailedCallError: pulsar-client or the broker refused the request or the reply.
            TimeoutError: no reply came in time.
        """
        self._count = number = self._count + 1
        reply: asyncio.Future[bytes] = self._loop.create_future()
        self._pending[number] = reply
        timer = None if timeout is None else self._loop.call_later(timeout, _expire, reply)
        try:
            self._producer.send_async(
                payload, partial(self._on_receipt, number), properties={**properties, ID: str(number)}
            )
            return await reply
        finally:
            if timer is not None:
                timer.cancel()
            del self._pending[number]

    # pulsar-client makes a new thread state for each of these callbacks, as in any program (see :func:`keep_thread_state`).

    def _on_message(self, _consumer: Any, message: Any) -> None:
        self._arrived.append(message)
        self._wake()

    def _on_receipt(self, number: int, result: Any, _message_id: Any) -> None:
        if result != OK:
            self._refused.append((number, result.name))
            self._wake()

    def _wake(self) -> None:
        if not self._is_waking:
            self._is_waking = True
            with contextlib.suppress(RuntimeError):  # the event loop is closed
                self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        self._is_waking = False
        while self._refused:
            number, failure = self._refused.popleft()
            self._resolve(number, FailedCallError(failure))
        while self._arrived:
            message = self._arrived.popleft()
            properties = message.properties()
            failure = properties.get(FAILED)
            self._on_reply(int(properties[ID]), message.data() if failure is None else FailedCallError(failure))

    def _on_reply(self, number: int, result: bytes | Exception) -> None:
        self._resolve(number, result)

    def _resolve(self, number: int, result: bytes | Exception) -> None:
        reply = self._pending.get(number)
        if reply is None or reply.done():
            return
        if isinstance(result, bytes):
            reply.set_result(result)
        else:
            reply.set_exception(result)

    async def close(self) -> None:
        """Close the connection."""
        await self._client.close()


def _expire(reply: asyncio.Future[bytes]) -> None:
    if not reply.done():
        reply.set_exception(TimeoutError())


def _ignore_receipt(_result: Any, _message_id: Any) -> None:
    keep_thread_state()


# Advice for people, derived from the measurements.


def give_advice(measurements: Sequence[Measurement], planned: int | None = None) -> list[str]:
    """Return sentences for people, the most important first.

    Args:
        measurements: the measurements.
        planned: number of planned measurements if some are missing; None: the measurement is complete.
    """
    plain_lost, plain_calls = count_lost_calls(measurement.plain for measurement in measurements)
    session_lost, session_calls = count_lost_calls(measurement.session for measurement in measurements)
    if not plain_calls + session_calls:
        return ["Nothing was measured."]
    lines = []
    if plain_lost:
        lines += _advise_on_plain_loss(measurements, session_lost, session_calls)
    if session_lost:
        lines += _advise_on_session_loss(measurements, session_lost, session_calls)
    if not plain_lost and not session_lost:
        lines.append(_describe_no_loss(plain_calls, session_calls, len(measurements), planned))
    lines += _describe_failures(measurements)
    lines += _compare_throughput(measurements)
    return lines


def find_safe_in_flight(measurements: Sequence[Measurement], size: int) -> int | None:
    """Return the largest number in flight up to which a plain client lost nothing at ``size``; None: it always lost some."""
    safe = None
    for measurement in measurements:  # of one size in ascending order
        if measurement.size == size and measurement.plain is not None:
            if measurement.plain.lost:
                break
            safe = measurement.in_flight
    return safe


def describe_load(measurement: Measurement) -> str:
    """Describe a load: ``100 kB and 64 in flight``."""
    return f"{format_size(measurement.size)} and {measurement.in_flight:,} in flight"


def _list_losing(runs: Iterable[tuple[Measurement, RunResult | None]]) -> list[tuple[Measurement, RunResult]]:
    """Return the runs in which calls were lost, the worst first."""
    losing = [(measurement, run) for measurement, run in runs if run is not None and run.lost]
    return sorted(losing, key=lambda each: (each[1].share, each[1].lost), reverse=True)


def _advise_on_plain_loss(measurements: Sequence[Measurement], session_lost: int, session_calls: int) -> list[str]:
    losing = _list_losing((measurement, measurement.plain) for measurement in measurements)
    worst, run = losing[0]
    line = (
        f"At {describe_load(worst)} your broker dropped {format_share(run.lost, run.calls)} of a plain client's replies"
    )
    line += f" ({run.lost:,} of {run.calls:,})"
    if worst.session is not None:
        with_sessions = format_share(worst.session.lost, worst.session.calls) if worst.session.lost else "none"
        line += f" and {with_sessions} with sessions ({worst.session.lost:,} of {worst.session.calls:,})"
    first = min(
        (measurement for measurement, _ in losing), key=lambda measurement: (measurement.size, measurement.in_flight)
    )
    line += "." if first is worst else f"; the smallest replies it dropped were of {describe_load(first)}."
    lines = [f"{line} Each lost reply costs a plain client its whole timeout."]
    if session_calls and not session_lost:
        lines.append(
            "Use ToolServer for the service (dispatch serve MODULE:CLASS) and dispatch.connect() for the agent: with "
            f"sessions none of {session_calls:,} calls was lost."
        )
    elif session_calls:
        lines.append(
            "ToolServer for the service (dispatch serve MODULE:CLASS) with dispatch.connect() for the agent lost "
            f"{format_share(session_lost, session_calls)} of {session_calls:,} calls over all measurements."
        )
    lines.append(
        "If a service or its clients cannot change, use persistent response topics, "
        "response_queue=persistent://TENANT/NAMESPACE/TOPIC on both sides. They drop nothing; each reply costs a write to "
        "the broker's disk (about 10 ms)."
    )
    lines.append(_describe_safe_limits(measurements, sorted({measurement.size for measurement, _ in losing})))
    return lines


def _describe_safe_limits(measurements: Sequence[Measurement], sizes: Sequence[int]) -> str:
    safe = {size: find_safe_in_flight(measurements, size) for size in sizes}
    limits = ", ".join(f"{n:,} at {format_size(size)}" for size, n in safe.items() if n is not None)
    never = ", ".join(format_size(size) for size, n in safe.items() if n is None)
    line = (
        f"Until then, limit a plain client's calls in flight to the numbers without loss: {limits}." if limits else ""
    )
    if never:
        line += f"{' ' if line else ''}At {never} it lost some at every measured number in flight."
    return line


def _advise_on_session_loss(measurements: Sequence[Measurement], lost: int, calls: int) -> list[str]:
    worst, run = _list_losing((measurement, measurement.session) for measurement in measurements)[0]
    return [
        f"With sessions, {lost:,} of {calls:,} calls were lost ({format_share(lost, calls)}), most at "
        f"{describe_load(worst)} ({run.lost:,} of {run.calls:,}). This is a defect. Measure again on an idle machine; if "
        "the loss persists, use persistent topics (request-queue and response-queue: persistent://TENANT/NAMESPACE/TOPIC) "
        "and report the output of 'dispatch doctor --loss --json'."
    ]


def _describe_no_loss(plain_calls: int, session_calls: int, measurements: int, planned: int | None) -> str:
    parts = []
    if plain_calls:
        parts.append(f"none of a plain client's {plain_calls:,} call{'' if plain_calls == 1 else 's'}")
    if session_calls:
        parts.append(f"none of {session_calls:,} with sessions")
    if planned is not None:
        return (
            f"This allows no conclusion: {measurements} of {planned} lines were measured, perhaps partially, without loss "
            f"({' and '.join(parts)}). Measure the others too, or select your own load with --sizes and --in-flight."
        )
    return (
        f"Nothing was lost: {' and '.join(parts)}, at any measured size and number in flight. Loss grows with load: "
        "measure again while your broker and network are under their highest load."
    )


def _describe_failures(measurements: Sequence[Measurement]) -> list[str]:
    lines = []
    for client, runs in (
        ("a plain client's", [(measurement, measurement.plain) for measurement in measurements]),
        ("dispatch's", [(measurement, measurement.session) for measurement in measurements]),
    ):
        failed: Counter[str] = Counter()
        places: dict[str, Measurement] = {}
        for measurement, run in runs:
            for type, count in run.errors.items() if run is not None else ():
                failed[type] += count
                places.setdefault(type, measurement)
        lines += [
            f"{count:,} of {client} calls failed with {type}, first at {describe_load(places[type])}; these are not lost."
            + (" The broker accepts smaller messages only (maxMessageSize)." if type == "MessageTooBig" else "")
            for type, count in failed.most_common()
        ]
    return lines


def _compare_throughput(measurements: Sequence[Measurement]) -> list[str]:
    ratios = [
        (measurement.session.rate / measurement.plain.rate, measurement)
        for measurement in measurements
        if measurement.plain is not None
        and measurement.session is not None
        and measurement.plain.rate > 0
        and measurement.session.rate > 0
    ]
    if not ratios:
        return []
    least, most = min(ratios, key=lambda each: each[0]), max(ratios, key=lambda each: each[0])
    if least[1] is most[1]:
        span = f"{_format_ratio(least[0])} times"
    else:
        span = (
            f"{_format_ratio(least[0])} (at {describe_load(least[1])}) to "
            f"{_format_ratio(most[0])} times (at {describe_load(most[1])})"
        )
    return [
        f"With sessions, throughput was {span} that of a plain client. The probe's plain client does less than a real one: "
        "its messages are prebuilt and not decoded, and a lost call frees its place after half a second."
    ]


def _format_ratio(ratio: float) -> str:
    return f"{ratio:,.1f}" if ratio >= 1 else f"{ratio:.2g}"


# The plain client as the loss probe uses it: it detects lost calls early and counts late replies.


CHECK_INTERVAL_S = 0.05
"""Seconds between two checks for lost calls."""
GRACE_CHECKS = 10
"""Checks for which a call still waits after a later one has been answered: half a second. A client's own timeout would be
longer."""
SIZE = "size"


@functools.cache
def reply_text(size: int) -> str:
    """Return the text that both services reply with: ``size`` bytes."""
    return "x" * size


@functools.cache
def reply_payload(size: int) -> bytes:
    """Return the encoded reply with a text of ``size`` bytes."""
    return encode_reply(Reply(None, reply_text(size), True))


def reply_to(properties: Mapping[str, str]) -> bytes:
    """Return the reply to a request with ``properties``, of the size that it asks for."""
    return reply_payload(int(properties[SIZE]))


class ProbeClient(PlainClient):
    """A plain client whose calls fail with :class:`LostCallError` soon after a later call was answered.

    The plain exchange keeps order: one producer, one topic, one consumer and one thread in each direction, and no
    retransmission. After the reply to a later call an earlier reply cannot arrive; :data:`GRACE_CHECKS` covers reordering in
    the client.
    """

    def __init__(self, url: str, security: Security) -> None:
        super().__init__(url, security)
        self._expired: set[int] = set()
        self._latest = 0
        """The highest number of a call that was answered."""
        self._latest_at_checks = deque([0] * (GRACE_CHECKS + 1), GRACE_CHECKS + 1)
        self._timer: asyncio.TimerHandle | None = None
        self.late = 0
        """Replies that arrived after their calls had ended as lost or cancelled."""

    async def open(self, requests: str, responses: str) -> None:
        await super().open(requests, responses)
        self._timer = self._loop.call_later(CHECK_INTERVAL_S, self._check_lost)

    async def call_sized(self, size: int) -> None:
        """Make one call, to be answered with ``size`` bytes.

        Raises:
            LostCallError: a later call was answered, and this one was not.
            FailedCallError: pulsar-client or the broker refused the request or the reply, or the reply has another size.
        """
        number = self._count + 1
        try:
            payload = await self.call(REQUEST, {SIZE: str(size)})
        except (LostCallError, asyncio.CancelledError):
            self._expired.add(number)
            raise
        if len(payload) != len(reply_payload(size)):
            raise FailedCallError("wrong-answer")

    def _on_reply(self, number: int, result: bytes | Exception) -> None:
        self._latest = max(self._latest, number)
        super()._on_reply(number, result)

    def _resolve(self, number: int, result: bytes | Exception) -> None:
        if number in self._expired:
            self._expired.discard(number)
            self.late += 1
        super()._resolve(number, result)

    def _check_lost(self) -> None:
        self._timer = self._loop.call_later(CHECK_INTERVAL_S, self._check_lost)
        self._latest_at_checks.append(self._latest)
        for number in list(self._pending):  # in the order of sending
            if number >= self._latest_at_checks[0]:
                break
            super()._resolve(number, LostCallError())

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await super().close()


# The probe: topics of its own on one broker, both services in a separate process, both clients in this one.


START_S = 20.0
"""Timeout for the start of the service process: an interpreter and some topics, seconds on a busy machine."""
FIRST_CALL_S = 10.0
"""Timeout of the first call, which opens the topics."""
STOP_S = 10.0
"""Timeout for the end of the service process: closing its connections takes at most 6 s."""
CALL_S = 60.0
"""Timeout of a call with sessions; a silence ends it earlier (:class:`Load`)."""
VISIBLE_LOSS: Mapping[str, Any] = {"retry": 1, "breaker": None, "bulkhead": None}
"""Policy of the calls: a loss is not repaired by a retry, and no guard rejects a call."""
STDERR_CHARS = 2_000
_HOME = str(Path(dispatch.__file__).resolve().parent.parent)


class ProbeError(Exception):
    """The measurement is not possible; the message names the reason."""


class Probe:
    """Measures one broker. ``async with Probe(...) as probe: run = await probe.measure(...)``.

    Its topics are non-persistent with unique names; the broker deletes them after the last client disconnects.

    Args:
        broker: ``pulsar://…`` or ``pulsar+ssl://…``.
        security: token and TLS settings.
        requests: the namespace (``tenant/namespace``) of the request topics.
        responses: the namespace of the response topics.
    """

    def __init__(self, broker: str, security: Security, requests: str, responses: str) -> None:
        self._broker = broker
        self._security = security
        name = f"dispatch-loss-{secrets.token_hex(6)}"
        self.plain_topics, self.session_topics = (
            (f"non-persistent://{requests}/{name}-{variant}", f"non-persistent://{responses}/{name}-{variant}")
            for variant in ("plain", "session")
        )
        self._open = contextlib.AsyncExitStack()
        self._service: asyncio.subprocess.Process | None = None
        self._has_answered = False
        self._stderr: Any = None
        self._plain: ProbeClient | None = None
        self._dispatcher: Dispatcher | None = None

    async def __aenter__(self) -> Probe:
        """Start service and clients.

        Raises:
            TransportError: the broker is not reachable, rejects the token, or lacks a namespace; the message names the fix.
            ProbeError: the service did not start or is not reachable.
        """
        from dispatch.transports.pulsar.handshake import shake_hands

        async with self._open as opening:
            await shake_hands(self._broker, self._security)  # finds a wrong address within milliseconds
            await self._start_service(opening)
            self._plain = ProbeClient(self._broker, self._security)
            opening.push_async_callback(self._plain.close)
            await self._plain.open(*self.plain_topics)
            self._dispatcher = await opening.enter_async_context(
                Dispatcher(
                    open_transport(self._broker, security=self._security),
                    make_echo_catalog(*self.session_topics, policy=VISIBLE_LOSS),
                )
            )
            for variant in VARIANTS:
                await self._make_first_call(variant)
            self._open = opening.pop_all()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._open.aclose()

    async def measure(
        self, variant: Variant, *, size: int, in_flight: int, calls: int | None, seconds: float | None
    ) -> RunResult:
        """Make one run.

        Args:
            variant: the measured exchange.
            size: reply size in bytes.
            in_flight: concurrent calls.
            calls: maximum number of calls; None: no limit.
            seconds: duration in which calls are started; None: until ``calls`` were made.

        Raises:
            ProbeError: no call got a reply.
        """
        plain = self._plain
        assert plain is not None
        late = plain.late
        load = Load(lambda: self._call(variant, size), in_flight=in_flight, calls=calls, seconds=seconds)
        run = await load.run()
        if plain.late > late:  # replies after the grace period: not lost
            run = RunResult(run.calls, run.lost - (plain.late - late), run.seconds, run.errors)
        if run.calls and run.lost == run.calls:
            raise ProbeError(f"{self._describe_service()} None of {run.calls:,} calls got a reply.")
        return run

    async def _call(self, variant: Variant, size: int) -> None:
        assert self._plain is not None
        assert self._dispatcher is not None
        if variant == "plain":
            await self._plain.call_sized(size)
            return
        result = await self._dispatcher.execute("echo", {"size": size}, timeout=CALL_S)
        if result.error is None:
            if len(result.text) != size:
                raise FailedCallError("wrong-answer")
        elif result.outcome is Outcome.TIMEOUT:
            raise LostCallError
        else:
            raise FailedCallError(result.error.type)

    async def _make_first_call(self, variant: Variant) -> None:
        """Make the first call, which opens the topics."""
        try:
            async with asyncio.timeout(FIRST_CALL_S):
                await self._call(variant, 1)
        except (TimeoutError, LostCallError, FailedCallError) as error:
            reason = error.type if isinstance(error, FailedCallError) else f"no reply within {FIRST_CALL_S:g} s"
            raise ProbeError(f"{self._describe_service()} The first call failed: {reason}.") from None

    # -- the service's process ----------------------------------------------------------------------------------

    async def _start_service(self, opening: contextlib.AsyncExitStack) -> None:
        token = self._security.token() if callable(self._security.token) else self._security.token
        spec = {
            "url": self._broker,
            "security": replace(self._security, token=token),
            "plain": self.plain_topics,
            "session": self.session_topics,
        }
        self._stderr = stderr = tempfile.TemporaryFile()  # noqa: SIM115 - the probe closes it
        opening.enter_context(stderr)
        self._service = service = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # modules in the current folder are not imported
            "-m",
            "dispatch.devtools.lossprobe",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=stderr,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [_HOME, os.environ.get("PYTHONPATH")]))},
            start_new_session=True,  # Ctrl-C must reach the probe only; the service ends with its stdin
        )
        opening.push_async_callback(self._stop, service)
        assert service.stdin is not None
        assert service.stdout is not None
        service.stdin.write(msgspec.json.encode(spec, enc_hook=str) + b"\n")
        line = b""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(START_S):
                line = await service.stdout.readline()
        if not line:
            raise ProbeError(f"{self._describe_service()} It was not ready within {START_S:g} s.")
        self._has_answered = True
        answer = json.loads(line)
        if "error" in answer:
            raise TransportError(answer["error"]["type"], answer["error"]["message"], may_have_run=False)

    async def _stop(self, service: asyncio.subprocess.Process) -> None:
        assert service.stdin is not None
        service.stdin.close()
        try:
            if self._has_answered:  # before its status it does not read stdin
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(STOP_S):
                        await service.wait()
        finally:  # also on cancellation
            if service.returncode is None:
                service.kill()  # its topics are non-persistent and vanish
                await service.wait()

    def _describe_service(self) -> str:
        service = self._service
        if service is None or service.returncode is None:
            return "The probe's service runs but does not reply: check the connection with 'dispatch doctor'."
        self._stderr.seek(0)
        stderr = self._stderr.read().decode(errors="replace").strip()[-STDERR_CHARS:]
        return f"The probe's service ended with status {service.returncode}{f': {stderr}' if stderr else ''}."


def make_echo_catalog(request_queue: str, response_queue: str, policy: Mapping[str, Any] | None = None) -> Catalog:
    """Return a catalogue with the tool ``echo``, which :class:`Echo` serves."""
    return Catalog.of(
        [{"id": "echo", "request-queue": request_queue, "response-queue": response_queue, "policy": policy or {}}],
        [
            {
                "type": "tool-service",
                "name": "echo",
                "description": "Replies with a number of bytes.",
                "service": "echo",
                "arguments": [{"name": "size", "type": "integer", "description": "Number of bytes.", "required": True}],
            }
        ],
    )


# The services that a probe calls, in a separate process: ``python -m dispatch.devtools.lossprobe``.
#
# In the probe's process they would share its interpreter lock, which would delay consumers and cause drops that a real
# service does not have.
#
# Protocol: one line of JSON on stdin specifies the services; one line on stdout reports readiness or an error. The process
# ends when its stdin is closed, so it never outlives its parent.


class Echo:
    """The tool of dispatch's service: replies with the requested number of bytes."""

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> str:
        """Return a text of ``size`` bytes."""
        return reply_text(int(arguments["size"]))


async def serve_echoes(spec: dict[str, Any]) -> None:
    """Serve both services until stdin is closed.

    Args:
        spec: ``url``, ``security`` (fields of :class:`Security`), ``plain`` and ``session`` (request and response topics).

    Raises:
        TransportError: the topics cannot be opened.
    """
    security = Security(**spec["security"])
    requests, responses = spec["session"]
    plain = PlainService(spec["url"], security, reply_to)
    try:
        await plain.open(*spec["plain"])
        async with ToolServer(
            Echo(), spec["url"], request_queue=requests, response_queue=responses, service="echo", security=security
        ):
            _write_status({"ready": True})
            await asyncio.to_thread(sys.stdin.read)
    finally:
        await plain.close()


def _write_status(status: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(status) + "\n")
    sys.stdout.flush()


def main() -> int:
    """Read the specification of the services and serve them. Returns the exit status."""
    line = sys.stdin.readline()
    if not line:
        return 0  # the parent ended before it wrote the specification
    try:
        asyncio.run(serve_echoes(json.loads(line)))
    except TransportError as error:
        _write_status({"error": {"type": error.type, "message": error.message}})
        return 1
    except BrokenPipeError:  # the parent ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
