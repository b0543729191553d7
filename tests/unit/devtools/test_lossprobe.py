"""Advice, which never claims more than was measured.
The load: so many at once, an end, and every call in exactly one count.
The plain client by itself, on a simulated pulsar-client.
The plan of a measurement, from the options.
The probe on a genuine broker, with its service's process.
The plain exchange: both its ends, on a pulsar-client that is played.
Results of a measurement, and the format of a share.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.harness.broker import Endpoint
from dispatch.devtools import lossprobe
from dispatch.devtools.lossprobe import SILENCE_S
from dispatch.transports import Mode, Security
from dispatch.transports.pulsar.client import OK
from tests.helpers import clock
from tests.unit.devtools.result_builders import grids, run, runs


def test_a_plain_client_lost_some_and_ours_none() -> None:
    cells = [
        lossprobe.Measurement(1_000, 64, run(2_000), run(2_000)),
        lossprobe.Measurement(10_000, 16, run(2_000), run(2_000)),
        lossprobe.Measurement(10_000, 64, run(2_000, 3), run(2_000)),
        lossprobe.Measurement(100_000, 16, run(1_000, 12), run(1_000)),
        lossprobe.Measurement(100_000, 64, run(1_000, 41, 50), run(1_000, 0, 80)),
    ]
    first, ours, persistent, until_then, speed = lossprobe.give_advice(cells)
    assert first == (
        "At 100 kB and 64 in flight your broker dropped 4.1 % of a plain client's replies (41 of 1,000) and none with "
        "sessions (0 of 1,000); the smallest replies it dropped were of 10 kB and 64 in flight. Each lost reply costs a "
        "plain client its whole timeout."
    )
    assert ours.startswith("Use ToolServer for the service (dispatch serve MODULE:CLASS)")
    assert ours.endswith("none of 8,000 calls was lost.")
    assert "response_queue=persistent://" in persistent
    assert "16 at 10 kB." in until_then
    assert "At 100 kB it lost some at every measured number in flight" in until_then
    assert "1.0 (at 1 kB and 64 in flight) to 1.6 times (at 100 kB and 64 in flight)" in speed


def test_ours_lost_some_too() -> None:
    lines = lossprobe.give_advice([lossprobe.Measurement(1_000_000, 256, run(400, 80), run(400, 2))])
    assert "dropped 20 % of a plain client's replies (80 of 400) and 0.50 % with sessions (2 of 400)." in lines[0]
    assert not any(line.startswith("Use ToolServer") for line in lines)
    (ours,) = [line for line in lines if line.startswith("With sessions, 2 of")]
    assert ours.startswith(
        "With sessions, 2 of 400 calls were lost (0.50 %), most at 1 MB and 256 in flight (2 of 400)."
    )
    assert "Measure again" in ours
    assert "persistent://" in ours
    assert "'dispatch doctor --loss --json'" in ours


def test_nothing_was_lost_anywhere() -> None:
    cells = [lossprobe.Measurement(120, 1, run(5_000), run(4_000)), lossprobe.Measurement(120, 64, run(5_000), None)]
    part = lossprobe.give_advice(cells, planned=40)[0]
    assert part.startswith("This allows no conclusion: 2 of 40 lines were measured")
    first, speed = lossprobe.give_advice(cells)
    assert first.startswith(
        "Nothing was lost: none of a plain client's 10,000 calls and none of 4,000 with sessions, at any measured size"
    )
    assert "measure again while your broker" in first
    assert speed.startswith("With sessions, throughput was 1.0 times that of a plain client.")


@given(grids(runs() | st.none(), runs() | st.none()))
def test_it_says_that_something_was_lost_exactly_if_it_was(cells: list[lossprobe.Measurement]) -> None:
    lines = " ".join(lossprobe.give_advice(cells))
    plain = [cell for cell in cells if cell.plain is not None and cell.plain.lost]
    ours = [cell for cell in cells if cell.session is not None and cell.session.lost]
    measured = any(cell.plain is not None or cell.session is not None for cell in cells)
    assert ("your broker dropped" in lines) == ("response_queue=persistent://" in lines) == bool(plain)
    assert ("calls were lost (" in lines) == bool(ours)
    assert ("Nothing was lost" in lines) == (measured and not plain and not ours)
    if ours:
        assert "Use ToolServer" not in lines
    if plain:
        worst = max(plain, key=lambda cell: cell.plain.share if cell.plain is not None else 0)
        assert worst.plain is not None
        assert any(
            f"At {lossprobe.describe_load(cell)} your broker dropped" in lines
            for cell in plain
            if cell.plain is not None and cell.plain.share == worst.plain.share
        )


@given(grids(runs(most_lost=2) | st.none(), st.none()))
def test_what_it_calls_safe_lost_nothing_nor_did_less(cells: list[lossprobe.Measurement]) -> None:
    for size in {cell.size for cell in cells}:
        measured = [(cell.in_flight, cell.plain.lost) for cell in cells if cell.size == size and cell.plain is not None]
        safe = lossprobe.find_safe_in_flight(cells, size)
        if safe is None:
            assert not measured or measured[0][1] > 0
        else:
            assert safe in {in_flight for in_flight, _ in measured}
            assert all(lost == 0 for in_flight, lost in measured if in_flight <= safe)
            beyond = [lost for in_flight, lost in measured if in_flight > safe]
            assert not beyond or beyond[0] > 0


ANSWERED, LOST, FAILED, SILENT = "answered", "lost", "failed", "silent"


class Script:
    """Calls that end as it says, over and over; each takes ``takes`` seconds of the virtual clock."""

    def __init__(self, *ends: str, takes: float = 0.001) -> None:
        self._ends = itertools.cycle(ends)
        self._takes = takes
        self.ends: list[str] = []
        self.at_once = self.most_at_once = self.cancelled = 0
        self.five = asyncio.Event()

    async def call(self) -> None:
        end = next(self._ends)
        self.ends.append(end)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        if self.at_once == 5:
            self.five.set()
        try:
            if end == SILENT:
                await asyncio.get_running_loop().create_future()
            await asyncio.sleep(self._takes)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.at_once -= 1
        if end == LOST:
            raise lossprobe.LostCallError
        if end == FAILED:
            raise lossprobe.FailedCallError("refused")


async def run_load(
    script: Script, *, in_flight: int = 1, calls: int | None = None, seconds: float | None = None
) -> lossprobe.RunResult:
    return await lossprobe.Load(script.call, in_flight=in_flight, calls=calls, seconds=seconds).run()


async def test_whichever_end_comes_first() -> None:
    assert (await run_load(Script(ANSWERED, takes=0.4), calls=2, seconds=10.0)).calls == 2
    assert (await run_load(Script(ANSWERED, takes=0.4), calls=100, seconds=1.0)).calls == 3


async def test_while_others_are_answered_nobody_is_given_up() -> None:
    slow = asyncio.get_running_loop().create_future()
    quick = Script(ANSWERED, takes=1.0)
    answered = itertools.count(1)

    async def call() -> None:
        if next(answered) == 1:
            await slow
        else:
            await quick.call()

    asyncio.get_running_loop().call_later(5 * SILENCE_S, slow.set_result, None)
    found = await lossprobe.Load(call, in_flight=2, calls=20, seconds=None).run()
    assert (found.calls, found.lost) == (20, 0)


@pytest.mark.parametrize("in_flight", [1, 8])
async def test_where_nobody_answers_it_ends_soon(in_flight: int) -> None:
    started = asyncio.get_running_loop().time()
    found = await run_load(Script(SILENT), in_flight=in_flight, calls=1_000)
    assert found.lost == found.calls == in_flight * lossprobe.MAX_SILENCES
    assert (found.seconds, found.rate) == (0.0, 0.0)
    assert asyncio.get_running_loop().time() - started < (lossprobe.MAX_SILENCES + 1) * SILENCE_S


@given(
    st.lists(st.sampled_from([ANSWERED, ANSWERED, LOST, FAILED, SILENT]), min_size=1, max_size=12),
    st.integers(1, 9),
    st.integers(1, 40),
)
def test_each_call_is_in_exactly_one_count(ends: list[str], in_flight: int, calls: int) -> None:
    script = Script(*ends)
    found = clock.run(lambda: run_load(script, in_flight=in_flight, calls=calls))
    assert found.calls == len(script.ends) <= calls
    assert found.lost == script.ends.count(LOST) + script.ends.count(SILENT)
    assert sum(found.errors.values()) == script.ends.count(FAILED)
    assert found.answered == script.ends.count(ANSWERED)
    assert script.most_at_once <= in_flight
    assert script.at_once == 0


def test_without_options_it_takes_about_a_minute() -> None:
    plan = lossprobe.make_plan()
    assert plan.sizes == (120, 1_000, 10_000, 100_000, 1_000_000)
    assert plan.in_flight == (1, 16, 64, 256)
    assert plan.calls is None
    assert plan.seconds == pytest.approx(lossprobe.TOTAL_S / 40)
    assert len(plan.loads) == 20
    assert plan.loads[:5] == [(120, 1), (120, 16), (120, 64), (120, 256), (1_000, 1)]


@pytest.mark.parametrize(
    ("options", "seconds"), [(("1k", "1"), 5.0), ((",".join(map(str, range(1, 200))), "1,2"), 0.5)]
)
def test_a_run_is_neither_endless_nor_too_short_to_see_anything(options: tuple[str, str], seconds: float) -> None:
    assert lossprobe.make_plan(*options).seconds == seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [
        *((text, 120) for text in ("120", "120B")),
        *((text, 1_000) for text in ("1k", "1kB", "1 KB")),
        *(("1.5M", 1_500_000), ("2mb", 2_000_000)),
    ],
)
def test_sizes_as_people_write_them(text: str, size: int) -> None:
    assert lossprobe.parse_size(text) == size


@given(st.integers(1, lossprobe.MAX_SIZE))
def test_a_size_that_is_shown_can_be_given_back(size: int) -> None:
    assert lossprobe.parse_size(lossprobe.format_size(size)) == size


@pytest.mark.parametrize(
    "text", ["", "k", "-1", "0", "1.5", "1e3", "1kk", "10q", "1,,2", "٣", "6M", "99999999999999999999M"]
)
def test_what_is_no_size_is_told_with_an_example(text: str) -> None:
    with pytest.raises(lossprobe.PlanError, match="--sizes") as told:
        lossprobe.make_plan(sizes=text)
    assert "120,10k" in told.value.fix


@given(st.text(max_size=12))
def test_no_text_is_taken_for_something_else(text: str) -> None:
    try:
        plan = lossprobe.make_plan(sizes=text)
    except lossprobe.PlanError:
        return
    assert all(1 <= size <= lossprobe.MAX_SIZE for size in plan.sizes)
    assert len(plan.sizes) <= text.count(",") + 1


@pytest.mark.parametrize("text", ["", "0", "1025", "1.5", "-1", "many", "1 6", "²"])
def test_what_is_no_number_in_flight_is_told_with_an_example(text: str) -> None:
    with pytest.raises(lossprobe.PlanError, match="--in-flight") as told:
        lossprobe.make_plan(in_flight=text)
    assert "1,16,64" in told.value.fix


@pytest.mark.parametrize("calls", [63, lossprobe.MAX_CALLS + 1])
def test_calls_must_fill_what_is_in_flight(calls: int) -> None:
    with pytest.raises(lossprobe.PlanError, match="with 64 in flight") as told:
        lossprobe.make_plan("1k", "4,64", calls)
    assert told.value.fix.startswith("use 64 to 1,000,000")
    assert lossprobe.make_plan("1k", "4,64", 64).calls == 64


def test_no_more_at_once_than_a_service_keeps() -> None:
    with pytest.raises(lossprobe.PlanError, match=f"{lossprobe.MAX_BYTES_IN_FLIGHT:,} bytes"):
        lossprobe.make_plan("120,1M", "1,300")
    assert lossprobe.make_plan("120,1M", "1,256").loads


def probe_on(endpoint: Endpoint, responses: str = "tg/response") -> lossprobe.Probe:
    return lossprobe.Probe(endpoint.service_url, Security(token=endpoint.token), "tg/request", responses)


@pytest.mark.pulsar
async def test_both_sides_are_measured_and_the_process_ends_with_it(pulsar_endpoint: Endpoint) -> None:
    async with probe_on(pulsar_endpoint) as probe:
        for side in lossprobe.VARIANTS:
            run = await probe.measure(side, size=1_000, in_flight=4, calls=60, seconds=None)
            assert run.calls == 60
            assert run.errors == {}
            assert run.answered == 60 - run.lost
            assert run.rate > 0
        timed = await probe.measure("session", size=100_000, in_flight=2, calls=None, seconds=0.1)
        assert timed.lost == 0
        assert timed.answered >= 2
        service = probe._service
        assert service.returncode is None
    assert service.returncode == 0


@pytest.mark.pulsar
async def test_a_service_that_died_is_told(pulsar_endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lossprobe, "SILENCE_S", 0.2)
    async with probe_on(pulsar_endpoint) as probe:
        probe._service.kill()
        await probe._service.wait()
        with pytest.raises(lossprobe.ProbeError, match=r"service ended with status -9\. None of 4 calls got a reply"):
            await probe.measure("plain", size=120, in_flight=2, calls=100, seconds=None)


REQUESTS, RESPONSES = "non-persistent://tg/request/x", "non-persistent://tg/response/x"
TOO_BIG = SimpleNamespace(name="MessageTooBig")
Vanishes = Callable[[dict[str, str]], bool]


class Played:
    """Topics, and on them producers and consumers with the methods that are used."""

    def __init__(self) -> None:
        self.listeners: dict[str, Callable[[Any, Any], None]] = {}
        self.vanishes: dict[str, Vanishes] = {}
        self.refuses: dict[str, Vanishes] = {}
        self.held: list[Callable[[], None]] | None = None
        self.closed = 0

    def link(self, _url: str, _security: Security) -> SimpleNamespace:
        return SimpleNamespace(producer=self._producer, consumer=self._consumer, close=self._close)

    async def _producer(self, topic: str) -> SimpleNamespace:
        def send_async(payload: bytes, callback: Callable[[Any, Any], None], properties: dict[str, str]) -> None:
            if topic in self.refuses and self.refuses[topic](properties):
                callback(TOO_BIG, None)
                return
            callback(OK, None)
            if topic in self.vanishes and self.vanishes[topic](properties):
                return
            message = SimpleNamespace(data=lambda: payload, properties=lambda: dict(properties))
            if self.held is not None and topic == RESPONSES:
                self.held.append(lambda: self.listeners[topic](None, message))
            else:
                self.listeners[topic](None, message)

        return SimpleNamespace(send_async=send_async)

    async def _consumer(self, topic: str, _mode: Mode, _name: str, listener: Callable[[Any, Any], None]) -> None:
        self.listeners[topic] = listener

    async def _close(self) -> None:
        self.closed += 1


@asynccontextmanager
async def both_ends(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[lossprobe.ProbeClient, Played]]:
    played = Played()
    monkeypatch.setattr(lossprobe, "PulsarClient", played.link)
    service, client = (
        lossprobe.PlainService("pulsar://x", Security(), lossprobe.reply_to),
        lossprobe.ProbeClient("pulsar://x", Security()),
    )
    await service.open(REQUESTS, RESPONSES)
    await client.open(REQUESTS, RESPONSES)
    try:
        yield client, played
    finally:
        await client.close()
        await service.close()
        assert played.closed == 2


@pytest.mark.parametrize("topic", [REQUESTS, RESPONSES])
async def test_what_vanishes_is_lost_soon_after_a_later_call_was_answered(
    monkeypatch: pytest.MonkeyPatch, topic: str
) -> None:
    clock = asyncio.get_running_loop().time
    async with both_ends(monkeypatch) as (client, played):
        played.vanishes[topic] = lambda properties: properties["id"] == "1"
        first = asyncio.ensure_future(client.call_sized(120))
        await asyncio.sleep(0)
        await client.call_sized(120)
        answered = clock()
        with pytest.raises(lossprobe.LostCallError):
            await first
        assert lossprobe.GRACE_CHECKS <= (clock() - answered) / lossprobe.CHECK_INTERVAL_S <= lossprobe.GRACE_CHECKS + 3
        assert client.late == 0


async def test_an_answer_that_comes_after_its_call_was_given_up_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async with both_ends(monkeypatch) as (client, played):
        played.held = []
        first = asyncio.ensure_future(client.call_sized(120))
        await asyncio.sleep(0)
        (late,), played.held = played.held, None
        await client.call_sized(120)
        with pytest.raises(lossprobe.LostCallError):
            await first
        late()
        late()  # a repetition is not a second one
        await client.call_sized(120)
        assert client.late == 1


@pytest.mark.parametrize("topic", [REQUESTS, RESPONSES])
async def test_what_is_refused_is_a_failure_and_no_loss(monkeypatch: pytest.MonkeyPatch, topic: str) -> None:
    async with both_ends(monkeypatch) as (client, played):
        played.refuses[topic] = lambda properties: "failed" not in properties
        with pytest.raises(lossprobe.FailedCallError, match="MessageTooBig"):
            await client.call_sized(120)


def test_a_run_counts_each_call_once() -> None:
    found = lossprobe.RunResult(calls=100, lost=4, seconds=2.0, errors={"MessageTooBig": 6})
    assert (found.answered, found.share, found.rate) == (90, 0.04, 45.0)
    assert found.as_dict() == {
        "calls": 100,
        "lost": 4,
        "lost_share": 0.04,
        "calls_per_second": 45.0,
        "seconds": 2.0,
        "errors": {"MessageTooBig": 6},
    }


@given(st.integers(1, 10**6).flatmap(lambda calls: st.tuples(st.integers(0, calls), st.just(calls))))
def test_a_share_never_says_none_or_all_when_it_was_not(counts: tuple[int, int]) -> None:
    lost, calls = counts
    text = lossprobe.format_share(lost, calls)
    assert (text == "0 %") == (lost == 0)
    assert (text == "100 %") == (lost == calls)
    if text[0] not in "<>":
        assert float(text.removesuffix(" %")) == pytest.approx(100 * lost / calls, rel=0.06)
