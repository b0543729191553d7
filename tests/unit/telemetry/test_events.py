"""Events are delivered to listeners and streams, and a slow or failing one affects no other."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from dispatch import CatalogError, ToolError
from dispatch.telemetry.events import (
    MAX_QUEUED,
    CatalogChanged,
    CircuitChanged,
    Event,
    Events,
    InstanceChanged,
)
from tests.helpers.clock import advance, idle
from tests.helpers.dispatcher_and_service import catalog, serving
from tests.helpers.telemetry_capture import Board, telling

pytestmark = pytest.mark.usefixtures("exact_breakers")

FRAGILE = {"breaker": {"consecutive-failures": 2, "count-tool-errors": True, "open-duration": 5, "half-open-calls": 1}}


def fail(_: dict[str, Any]) -> str:
    raise ToolError("failed", "as told")


def told(events: list[Event]) -> list[tuple[Any, ...]]:
    """Without the time."""
    return [tuple(value for key, value in event.as_dict().items() if key != "at") for event in events]


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


async def test_changes_of_instances_are_events() -> None:
    events: list[Event] = []
    tools = catalog(work={"idempotent": True, "policy": {**FRAGILE, "attempt-timeout": 0.5, "timeout": 5}})

    async def stuck(_: dict[str, Any]) -> str:
        await asyncio.sleep(60)
        return "late"

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


async def test_a_listener_can_unsubscribe() -> None:
    heard: list[Event] = []
    async with telling(Board().telemetry()) as dispatcher:
        off = dispatcher.on_event(heard.append)
        await dispatcher.reload()
        off()
        off()  # once more does nothing
        await dispatcher.reload()
    assert len(heard) == 1


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


async def test_a_slow_stream_drops_the_oldest_events() -> None:
    events = Events()
    slow, other = events.open_stream(), events.open_stream()
    for number in range(MAX_QUEUED + 5):
        events.publish(changed(number))
    assert slow.dropped == other.dropped == 5
    assert (await anext(slow)).tools == 5  # type: ignore[attr-defined] # a catalogue's
    events.close()
    assert [event.tools async for event in slow] == list(range(6, MAX_QUEUED + 5))  # type: ignore[attr-defined]


async def test_a_stream_without_references_is_removed() -> None:
    events = Events()
    assert len(events) == 0
    stream = events.open_stream()
    assert len(events) == 1
    del stream
    gc.collect()
    assert len(events) == 0


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
