"""Events are delivered to listeners and streams, and a slow or failing one affects no other.
The observer of a dispatcher reads the sessions that it is given, until they are released or it is closed.
docs/reference/traces-logs-events.md names every span attribute and span event of dispatch's own.
One line for each transition, with its facts as fields and limited in rate; none for calls by default.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from dispatch import CatalogError, Dispatcher, Telemetry, ToolError
from dispatch.telemetry import observers
from dispatch.telemetry.events import (
    MAX_KEYS,
    MAX_QUEUED,
    REPEAT_INTERVAL_S,
    CatalogChanged,
    CircuitChanged,
    Event,
    Events,
    InstanceChanged,
    TransitionLogger,
)
from dispatch.telemetry.reporting import TelemetryDispatcherObserver
from dispatch.transports.memory import MemoryTransport
from tests.helpers.clock import advance, idle, reply_after
from tests.helpers.dispatcher_and_service import BROKER, UNGUARDED, catalog, serving
from tests.helpers.session_pair import DelayedSessionPair
from tests.helpers.telemetry_capture import Board, Spans, telling

FRAGILE = {"breaker": {"consecutive-failures": 2, "count-tool-errors": True, "open-duration": 5, "half-open-calls": 1}}


def fail(_: dict[str, Any]) -> str:
    raise ToolError("failed", "as told")


def told(events: list[Event]) -> list[tuple[Any, ...]]:
    """Without the time."""
    return [tuple(value for key, value in event.as_dict().items() if key != "at") for event in events]


@pytest.mark.usefixtures("exact_breakers")
async def test_transitions_of_a_circuit_are_events() -> None:
    events: list[Event] = []
    async with (
        serving(fail, instance="a"),
        telling(Board().telemetry(), catalog(work={"policy": {**FRAGILE, "retry": 1}})) as dispatcher,
    ):
        dispatcher.on_event(events.append)
        for _ in range(3):
            await dispatcher.execute("work")
        await advance(5)
        await dispatcher.execute("work")
        dispatcher.breaker("work").disable()
    assert told(events) == [
        ("instance", "lab", "a", "joined", "here"),
        ("circuit", "work", None, "closed", "open", "consecutive-failures", None),
        ("circuit", "work", None, "open", "half-open", "open-time-over", None),
        ("circuit", "work", None, "half-open", "open", events[3].reason, None),  # type: ignore[attr-defined] # a circuit's
        ("circuit", "work", None, "open", "disabled", "disabled", None),
    ]
    assert [type(event) for event in events] == [InstanceChanged, *[CircuitChanged] * 4]
    assert all(event.at > 1_600_000_000 for event in events), "seconds since the epoch"


@pytest.mark.usefixtures("exact_breakers")
async def test_changes_of_instances_are_events() -> None:
    events: list[Event] = []
    tools = catalog(work={"idempotent": True, "policy": {**FRAGILE, "attempt-timeout": 0.5, "timeout": 5}})
    stuck = reply_after(60, "late")
    board = Board()
    async with telling(board.telemetry(), tools) as dispatcher:
        dispatcher.on_event(events.append)
        async with serving(lambda _: "done", instance="fine"):
            async with serving(stuck, instance="stuck"):
                for _ in range(40):
                    await dispatcher.execute("work")
            await dispatcher.execute("work")
    assert {each[1:4] for each in told(events) if each[0] == "instance"} >= {
        ("lab", "fine", "joined"),
        ("lab", "stuck", "joined"),
        ("lab", "stuck", "left"),
    }
    assert ("circuit", "work", "stuck", "closed", "open", "consecutive-failures", None) in told(events)
    whole = [each for each in told(events) if each[:3] == ("circuit", "work", None)]
    counted = {key: n for key, n in board.read().items() if key.startswith("circuit_transitions_total") and n}
    assert sum(counted.values()) == len(whole), "the metric is of the tool's circuit, not of those at its instances"


@pytest.mark.usefixtures("exact_breakers")
async def test_reloads_of_the_catalogue_are_events(tmp_path: Any) -> None:
    events: list[Event] = []
    async with telling(Board().telemetry(), catalog(one={}, two={})) as dispatcher:
        dispatcher.on_event(events.append)
        await dispatcher.reload(catalog(one={}))
        (tmp_path / "tool").mkdir()
        (tmp_path / "tool" / "bad.json").write_text("{")
        with pytest.raises(CatalogError):
            await dispatcher.reload(tmp_path)
    assert [type(event) for event in events] == [CatalogChanged, CatalogChanged]
    good, bad = told(events)
    assert good[:5] == ("catalog", "code", True, 1, "")
    assert bad[:4] == ("catalog", f"folder:{tmp_path}", False, 1)
    assert "not JSON" in bad[4]


@pytest.mark.usefixtures("exact_breakers")
async def test_a_listener_can_unsubscribe() -> None:
    heard: list[Event] = []
    async with telling(Board().telemetry()) as dispatcher:
        off = dispatcher.on_event(heard.append)
        await dispatcher.reload()
        off()
        off()  # once more does nothing
        await dispatcher.reload()
    assert len(heard) == 1


@pytest.mark.usefixtures("exact_breakers")
async def test_an_error_of_a_listener_is_logged_and_affects_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[Event] = []

    def broken(_: Event) -> None:
        raise LookupError("the listener's own mistake")

    async with serving(lambda _: "done"), telling(Board().telemetry(), catalog(work={})) as dispatcher:
        dispatcher.on_event(broken)
        dispatcher.on_event(heard.append)
        dispatcher.breaker("work").force_open()
        dispatcher.breaker("work").reset()
        assert (await dispatcher.execute("work")).ok
    assert len(heard) == 3
    assert "a listener of events failed" in caplog.text


@pytest.mark.usefixtures("exact_breakers")
async def test_a_listener_may_subscribe_or_unsubscribe_during_an_event() -> None:
    events, heard = Events(), []

    def once(event: Event) -> None:
        off()
        events.subscribe(heard.append)

    off = events.subscribe(once)
    events.publish(CatalogChanged(0.0, "code", True, 1))
    events.publish(CatalogChanged(0.0, "code", True, 2))
    assert [event.tools for event in heard] == [2]


# -- iterating --------------------------------------------------------------------------------------------------------
def changed(number: int) -> CatalogChanged:
    return CatalogChanged(0.0, "code", True, number)


@pytest.mark.usefixtures("exact_breakers")
async def test_a_stream_has_every_event_since_it_was_opened() -> None:
    async with telling(Board().telemetry(), catalog(work={})) as dispatcher:
        stream = dispatcher.events()
        await dispatcher.reload()  # before the first turn of the loop
        got: list[Event] = []

        async def watch() -> None:
            async for event in stream:
                got.append(event)

        watching = asyncio.create_task(watch())
        await idle()
        dispatcher.breaker("work").force_open()
        await idle()
        assert [type(event) for event in got] == [CatalogChanged, CircuitChanged]
        dispatcher.breaker("work").reset()
        await dispatcher.close()
        await watching  # it ends by itself, when it has read what there was
        assert len(got) == 3
        assert [event async for event in dispatcher.events()] == [], "nothing comes any more"


@pytest.mark.usefixtures("exact_breakers")
async def test_a_slow_stream_drops_the_oldest_events() -> None:
    events = Events()
    slow, other = events.open_stream(), events.open_stream()
    for number in range(MAX_QUEUED + 5):
        events.publish(changed(number))
    assert slow.dropped == other.dropped == 5
    assert (await anext(slow)).tools == 5  # type: ignore[attr-defined] # a catalogue's
    events.close()
    assert [event.tools async for event in slow] == list(range(6, MAX_QUEUED + 5))  # type: ignore[attr-defined]


@pytest.mark.usefixtures("exact_breakers")
async def test_a_stream_without_references_is_removed() -> None:
    events = Events()
    assert len(events) == 0
    stream = events.open_stream()
    assert len(events) == 1
    del stream
    gc.collect()
    assert len(events) == 0


@pytest.mark.usefixtures("exact_breakers")
async def test_a_cancelled_reader_can_read_again() -> None:
    events = Events()
    stream = events.open_stream()
    reading = asyncio.ensure_future(anext(stream))
    await idle()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    events.publish(changed(1))
    assert (await anext(stream)).tools == 1  # type: ignore[attr-defined]


CALLER, CALLEE = {"role": "caller"}, {"role": "callee"}


def sample(registry: CollectorRegistry, name: str, labels: dict[str, str]) -> float | None:
    return registry.get_sample_value(f"dispatch_{name}", labels)


def open_sessions(registry: CollectorRegistry, labels: dict[str, str]) -> float | None:
    return sample(registry, "sessions", labels | {"state": "open"})


@pytest.mark.parametrize("is_closed", [True, False])
def test_the_counts_of_released_sessions_stay(is_closed: bool) -> None:
    registry, pair = CollectorRegistry(), DelayedSessionPair()
    observer = TelemetryDispatcherObserver(Telemetry(registry=registry), Events(), "client", lambda: 0.0)
    observer.observe_sessions(pair.dispatcher)
    assert open_sessions(registry, CALLER) == 1
    sent = sample(registry, "session_packets_sent_total", CALLER)
    assert sent
    if is_closed:
        observer.close()
    else:
        observer.release_sessions(pair.dispatcher)
        observer.release_sessions(pair.dispatcher)
    assert open_sessions(registry, CALLER) == 0
    assert sample(registry, "session_packets_sent_total", CALLER) == sent


async def test_a_call_over_a_session_is_counted_on_both_sides() -> None:
    registry = CollectorRegistry()
    telemetry = Telemetry(registry=registry)
    async with (
        serving(lambda _arguments: "done", telemetry=telemetry),
        Dispatcher(MemoryTransport(BROKER), catalog(work={"policy": UNGUARDED}), telemetry=telemetry) as dispatcher,
    ):
        for _ in range(3):
            await dispatcher.execute("work", {})
        for labels in (CALLER, CALLEE):
            assert open_sessions(registry, labels) == 1
            assert (sample(registry, "session_frames_sent_total", labels) or 0) >= 3
            assert sample(registry, "session_packets_rejected_total", labels | {"reason": "malformed"}) == 0
    for labels in (CALLER, CALLEE):
        assert open_sessions(registry, labels) == 0
        assert (sample(registry, "session_frames_sent_total", labels) or 0) >= 3


PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "traces-logs-events.md").read_text(encoding="utf-8")
OF_EVENTS = {observers.REASON, observers.WAIT, observers.SERVICE}
"""Attributes of span events, and the service's name."""


def test_attributes_and_events_of_our_own_are_named() -> None:
    ours = {value for name, value in vars(observers).items() if name.isupper() and str(value).startswith("dispatch.")}
    assert {name for name in ours - OF_EVENTS if f"`{name}`" not in PAGE} == set()


async def test_one_line_for_each_transition_with_its_facts(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        serving(fail, instance="a"),
        telling(Board().telemetry(), catalog(work={"policy": {**FRAGILE, "retry": 1}})) as dispatcher,
    ):
        with caplog.at_level(logging.INFO, "dispatch"):
            caplog.clear()
            for _ in range(50):
                await dispatcher.execute("work")
    lines = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert lines == [
        ("INFO", "instance a of lab: joined (here)"),
        ("WARNING", "circuit of 'work': closed to open (consecutive-failures)"),
    ], "and none for a call"
    facts = [{k: v for k, v in vars(record).items() if k.startswith("dispatch_")} for record in caplog.records]
    assert facts == [
        {"dispatch_service": "lab", "dispatch_instance": "a", "dispatch_change": "joined", "dispatch_reason": "here"},
        {
            "dispatch_tool": "work",
            "dispatch_version": None,
            "dispatch_instance": None,
            "dispatch_old": "closed",
            "dispatch_new": "open",
            "dispatch_reason": "consecutive-failures",
        },
    ]


async def test_lines_of_a_flapping_circuit_are_limited_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    async def flap(dispatcher: Dispatcher, times: int) -> None:
        for _ in range(times):
            dispatcher.breaker("work").force_open()
            dispatcher.breaker("work").reset()

    async with telling(Board().telemetry(), catalog(work={}, other={})) as dispatcher:
        with caplog.at_level(logging.INFO, "dispatch"):
            await flap(dispatcher, 100)
            assert [record.getMessage() for record in caplog.records] == [
                "circuit of 'work': closed to forced-open (forced)",
                "circuit of 'work': forced-open to closed (reset)",
            ]
            caplog.clear()
            dispatcher.breaker("other").force_open()
            assert len(caplog.records) == 1, "another one has lines of its own"
            caplog.clear()
            await advance(10)
            await flap(dispatcher, 1)
    assert [record.getMessage() for record in caplog.records] == [
        "circuit of 'work': closed to forced-open (forced) (99 more since the last line)",
        "circuit of 'work': forced-open to closed (reset) (99 more since the last line)",
    ]
    assert [record.dispatch_repeated for record in caplog.records] == [99, 99]  # type: ignore[attr-defined]


async def test_lines_of_repeated_failed_reloads_are_limited(caplog: pytest.LogCaptureFixture, tmp_path: Any) -> None:
    (tmp_path / "tool").mkdir()
    (tmp_path / "tool" / "bad.json").write_text("{")
    async with telling(Board().telemetry()) as dispatcher:
        for _ in range(20):
            with pytest.raises(CatalogError):
                await dispatcher.reload(tmp_path)
    (record,) = [record for record in caplog.records if record.name == "dispatch.transitions"]
    assert record.levelno == logging.WARNING
    assert record.dispatch_source == f"folder:{tmp_path}"  # type: ignore[attr-defined]
    assert "not JSON" in record.dispatch_problem  # type: ignore[attr-defined]


def test_the_number_of_remembered_keys_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    lines = TransitionLogger(logging.getLogger("dispatch.transitions"), lambda: now)
    for number in range(3 * MAX_KEYS):
        lines.log(logging.WARNING, ("circuit", str(number)), "changed")
    assert len(lines._last) == MAX_KEYS
    caplog.clear()
    lines.log(logging.WARNING, ("circuit", str(3 * MAX_KEYS - 1)), "again")
    assert caplog.records == [], "of the latest it is known"
    now = REPEAT_INTERVAL_S
    lines.log(logging.WARNING, ("circuit", str(3 * MAX_KEYS - 1)), "again")
    assert [record.getMessage() for record in caplog.records] == ["again (1 more since the last line)"]


async def test_each_call_is_logged_at_debug_level_only(caplog: pytest.LogCaptureFixture) -> None:
    async def work(arguments: dict[str, Any]) -> str:
        if "fail" in arguments:
            raise ToolError("no", "no")
        await asyncio.sleep(arguments.get("sleep", 0.0))
        return "done"

    spans = Spans()
    async with serving(work), telling(spans.telemetry()) as dispatcher:
        with caplog.at_level(logging.INFO):
            await dispatcher.call("work")
        assert [each for each in caplog.records if each.name == "dispatch.calls"] == []
        with caplog.at_level(logging.DEBUG, "dispatch.calls"):
            good = await dispatcher.execute("work")
            await dispatcher.execute("work", {"fail": 1})
            leaving = asyncio.create_task(dispatcher.call("work", {"sleep": 9.0}))
            await advance(1.0)
            leaving.cancel()
            await asyncio.wait([leaving])
    told = [vars(each) for each in caplog.records if each.name == "dispatch.calls"]
    assert [(each["dispatch_tool"], each["dispatch_outcome"], each["dispatch_error_type"]) for each in told] == [
        ("work", "success", ""),
        ("work", "tool_error", "tool-error"),
        ("work", "cancelled", ""),
    ]
    assert told[0]["dispatch_call_id"] == good.request_id
    traces = [f"{each.context.trace_id:032x}" for each in spans.named("execute_tool") if each.context is not None]
    assert [each["dispatch_trace_id"] for each in told] == traces[1:]
    assert told[2]["dispatch_seconds"] == pytest.approx(1.0)
