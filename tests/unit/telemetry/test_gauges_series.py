"""How many series there are, and when they go: bounded whatever models invent and however often catalogues change.
Metrics of services, their instances and the catalogue.
The gauges of sources are read from the registry at the scrape, and disappear with their source.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import tracemalloc
import weakref
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import Counter, Gauge
from prometheus_client.openmetrics.exposition import generate_latest

from dispatch import (
    Catalog,
    CatalogError,
    ChangeHeld,
    Dispatcher,
    Event,
    ItemRefused,
    Policy,
    PolicyError,
    Retry,
    SourceChanged,
    Telemetry,
    __version__,
)
from dispatch._internal import RETENTION_S
from dispatch.messaging.wire import Property
from dispatch.telemetry import call_metrics
from dispatch.telemetry.call_metrics import Instruments
from dispatch.telemetry.events import Events
from dispatch.telemetry.gauges import DispatcherCollector
from dispatch.telemetry.observers import NULL_CALL
from dispatch.telemetry.reporting import TelemetryDispatcherObserver
from dispatch.testing import FaultInjector, Faults, FaultyTransport
from dispatch.transports.memory import MemoryTransport
from tests.helpers.clock import advance, idle, reply_after, wait_at
from tests.helpers.dispatcher_and_service import BROKER, RESPONSES, UNGUARDED, Peer, catalog, read, serving
from tests.helpers.run_profile import by_profile
from tests.helpers.telemetry_capture import Board, telling
from tests.helpers.troubled_source import CHANGED, INVALID, SERVICE, SOUND, TOOL, TroubledSource

EVERYTHING = {"rate-limit": "1000/s", "user-rate-limit": "1000/s", "hedging": 0.2, "attempt-timeout": 0.5, "timeout": 5}


def lines(board: Board, *wanted: str) -> list[str]:
    """What a scrape has of them."""
    text = generate_latest(board.registry).decode()
    return [line for line in text.splitlines() if not line.startswith("#") and all(each in line for each in wanted)]


@pytest.fixture
def board() -> Board:
    return Board()


async def test_series_of_a_tool_and_of_an_instance(board: Board) -> None:
    """After everything: ≤ 95 a tool, ≤ 12 an instance."""
    stuck = reply_after(100, "late")

    async def streams(_: dict[str, Any]) -> Any:
        async def chunks() -> Any:
            yield "a"
            yield "b"

        return chunks()

    tools = catalog(work={"read-only": True, "policy": EVERYTHING})
    async with contextlib.AsyncExitStack() as stack:
        for name, work in (("stuck", stuck), ("one", streams), ("two", streams)):
            await stack.enter_async_context(serving(work, instance=name))
        dispatcher = await stack.enter_async_context(telling(board.telemetry(), tools))
        for _ in range(60):
            await dispatcher.execute("work", user="ann")
        await read(dispatcher.stream("work"), [])
        dispatcher.breaker("work").force_open()
        await dispatcher.execute("work")
        assert board["instance_ejections_total lab stuck failures"] == 1
        assert board["instances lab ejected"] == 1
        tool = lines(board, 'tool="work"')
        assert 60 < len(tool) <= 95, tool
        instance = lines(board, 'instance="stuck"')
        assert len(instance) <= 12, instance
        of_instance = {line.partition("{")[0] for line in instance}
        assert of_instance == {"dispatch_instance_ejections_total", "dispatch_instance_inflight_calls"}
        others = [line for line in lines(board, "dispatch_") if "tool=" not in line and "instance=" not in line]
        sessions = [line for line in others if line.startswith("dispatch_session")]
        assert len(others) - len(sessions) <= 28, others
        assert len(sessions) <= 30, "of one role, however many sessions there are"


@pytest.mark.costly
async def test_names_that_models_invent_add_no_series_and_no_memory() -> None:
    board, names = Board(), 7_000
    async with serving(lambda _: "done"), telling(board.telemetry(), catalog(work={}, other={})) as dispatcher:
        await dispatcher.execute("work")
        await dispatcher.execute("early")
        before = set(board.read())
        traced = 5_000  # it makes everything several times slower
        for number in range(names - traced):
            await dispatcher.execute(f"invented-{number}")
        tracemalloc.start()
        try:
            held = tracemalloc.get_traced_memory()[0]
            for number in range(names - traced, names):
                await dispatcher.execute(f"invented-{number}")
            grown = tracemalloc.get_traced_memory()[0] - held
        finally:
            tracemalloc.stop()
        assert grown < traced, "less than a byte a name"
        assert set(board.read()) == before
        assert board["calls_total _OTHER refused"] == names + 1
        assert board["inflight_calls _OTHER"] == 0


async def test_series_of_a_removed_tool_are_removed(board: Board) -> None:
    both = catalog(one={}, two={})
    async with serving(lambda _: "done"), telling(board.telemetry(), both) as dispatcher:
        await dispatcher.execute("one")
        await dispatcher.execute("two")
        first = set(board.of("one"))
        assert len(first) > 50
        await dispatcher.reload(catalog(two={}))
        await advance(RETENTION_S - 1)
        assert set(board.of("one")) == first
        await advance(1)
        assert board.of("one") == []
        assert board["calls_total two success"] == 1
        assert (await dispatcher.execute("one")).error is not None
        assert board["calls_total _OTHER refused"] == 1
        await dispatcher.reload(both)
        await dispatcher.execute("one")
        assert set(board.of("one")) == first
        assert board["calls_total one success"] == 1, "a tool of that name begins anew"


async def test_series_of_a_removed_service_and_its_instances_are_removed(board: Board) -> None:
    async with serving(lambda _: "done", instance="a"), telling(board.telemetry(), catalog(work={})) as dispatcher:
        await dispatcher.execute("work")
        dispatcher._running.observer.on_instance_change("lab", "a", "ejected", "failures")
        there = {"instances lab warming", "replies_total lab matched", "instance_ejections_total lab a failures"}
        assert there <= set(board.of("lab"))
        await dispatcher.reload(Catalog.empty())
        await advance(RETENTION_S)
        assert board.of("lab") == []
        assert board.of("work") == []


async def test_series_stay_while_another_dispatcher_has_the_tool(board: Board) -> None:
    tools = catalog(one={}, two={})
    async with (
        serving(lambda _: "done"),
        telling(board.telemetry(), tools) as first,
        telling(board.telemetry(), tools) as second,
    ):
        for each in (first, second):
            await each.execute("one")
        assert board["calls_total one success"] == 2, "what they count adds up"
        await first.reload(catalog(two={}))
        assert board["calls_total one success"] == 2
        await second.execute("one")
        assert board["calls_total one success"] == 3
        await second.reload(catalog(two={}))
        await advance(RETENTION_S)
        assert board.of("one") == []


async def test_counters_of_a_dispatcher_that_is_closed_stay(board: Board) -> None:
    """A counter that goes back to nothing, or away, is a gap in every rate."""
    async with serving(lambda _: "done"):
        for count in (1, 2, 3):
            async with telling(board.telemetry(), catalog(work={})) as dispatcher:
                await dispatcher.execute("work")
                assert board["calls_total work success"] == count
                assert board["circuit_state work closed"] == 1
            assert board["calls_total work success"] == count
            assert "circuit_state work closed" not in board.read(), "its circuit is no more"
            assert board["inflight_calls work"] == 0
            assert "broker_connected" not in board.read() or board["broker_connected"] == 0


async def test_a_tool_is_removed_after_its_last_dispatcher_was_closed(board: Board) -> None:
    async with serving(lambda _: "done"), telling(board.telemetry(), catalog(work={}, other={})) as second:
        await second.execute("work")
        async with telling(board.telemetry(), catalog(work={})) as first:
            await first.execute("work")
        await second.reload(catalog(other={}))
        await advance(RETENTION_S)
        assert board.of("work") == []


async def test_calls_in_flight_end_after_their_tool_was_removed() -> None:
    board, gate = Board(), asyncio.Event()
    slow = wait_at(gate)
    async with serving(slow), telling(board.telemetry(), catalog(one={}, two={})) as dispatcher:
        call = asyncio.create_task(dispatcher.execute("one", timeout=300))
        await asyncio.sleep(0.1)
        await dispatcher.reload(catalog(two={}))
        await advance(RETENTION_S + 1)
        assert board["inflight_calls one"] == 1
        gate.set()
        assert (await call).text == "done"
        assert board.of("one") == []


async def test_tools_services_and_instances_beyond_the_limits_share_series(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(call_metrics, "MAX_TOOLS", 3)
    monkeypatch.setattr(call_metrics, "MAX_SERVICES", 0)
    monkeypatch.setattr(call_metrics, "MAX_INSTANCES", 2)
    monkeypatch.setattr("dispatch.telemetry.gauges.MAX_INSTANCES", 2)
    board = Board()
    names = [f"tool-{number}" for number in range(6)]
    tools = catalog(**{name: {"policy": {"retry": 1}} for name in names})
    async with contextlib.AsyncExitStack() as stack:
        for name in "abcd":
            await stack.enter_async_context(serving(lambda _: "done", instance=name))
        dispatcher = await stack.enter_async_context(telling(board.telemetry(), tools))
        with caplog.at_level(logging.WARNING, "dispatch.telemetry"):
            for name in names:
                await dispatcher.execute(name)
        assert [record.message for record in caplog.records if "tools" in record.message] == [
            "more than 3 tools: further ones share the series _OTHER"
        ]
        dispatcher.breaker("tool-5").force_open()
        for each in "abcd":
            dispatcher._running.observer.on_instance_change("lab", each, "ejected", "failures")
        now = board.read()
        shared = {key for key in now if key.startswith("circuit_state ")}
        assert {key.split(" ")[1] for key in shared} == {"tool-0", "tool-1", "tool-2", "_OTHER"}
        assert now["circuit_state _OTHER closed"] == 2
        assert now["circuit_state _OTHER forced-open"] == 1
        assert now["calls_total _OTHER success"] == 3
        assert now["queued_calls _OTHER"] == 0
        assert {key.split(" ")[1] for key in now if key.startswith(("replies", "instances "))} == {"_OTHER"}
        assert [key for key in now if key.startswith("instance_ejections")] == [
            f"instance_ejections_total lab {each} {why}" for each in "cd" for why in call_metrics.EJECTION_REASONS
        ], "the latest"
        there = [key for key in now if key.startswith("instance_inflight_calls")]
        assert there == [f"instance_inflight_calls _OTHER {instance}" for instance in ("a", "b", "_OTHER")]
        await dispatcher.reload(catalog(**{name: {} for name in names[1:]}))
        await advance(RETENTION_S)
        await dispatcher.execute("tool-4")
        assert board.of("tool-0") == []
        assert board.of("tool-4") == [], "it has the series that it began with"


async def test_other_metrics_of_a_users_registry_are_unchanged() -> None:
    board, other = Board(), Board()
    theirs = Counter("theirs", "Of the user's own.", registry=board.registry)
    theirs.inc()
    Gauge("theirs_too", "Likewise.", registry=board.registry).set(2)
    async with (
        serving(lambda _: "done"),
        telling(board.telemetry(), catalog(work={})) as dispatcher,
        telling(other.telemetry(), catalog(work={})),
    ):
        await dispatcher.execute("work")
        assert other.counted() == {}
        ours = [line for line in lines(board) if line.startswith("dispatch_")]
        assert ours
        assert not [line for line in ours if "_created" in line]
        mine = [line for line in lines(board) if not line.startswith("dispatch_")]
        assert [line.partition(" ")[0] for line in mine] == ["theirs_total", "theirs_created", "theirs_too"]


async def test_nothing_is_exported_when_metrics_are_off(board: Board) -> None:
    silent = Telemetry(registry=board.registry, metrics=False, traces="off")
    async with serving(lambda _: "done"), telling(silent, catalog(work={"policy": UNGUARDED})) as dispatcher:
        assert (await dispatcher.execute("work")).ok
        assert (await dispatcher.execute("unheard-of")).error is not None
        target = dispatcher._live.resolver.tool("work")
        engine = dispatcher._running
        assert engine.guards_of(target).observer.start_call(target, 0.0) is NULL_CALL
        await dispatcher.reload(catalog(work={}))
        assert lines(board) == []
        assert board.registry not in Instruments._by_registry
        assert board.registry not in DispatcherCollector._by_registry


async def test_a_dispatcher_without_references_is_not_read(board: Board) -> None:
    """One that was never closed keeps nothing alive that a scrape would look at for ever."""

    class Small:
        connected, pending = True, 7

        def circuits(self) -> dict[str, Any]:
            return {}

        queued = abandoned_threads = circuits

        def pools(self) -> tuple[()]:
            return ()

        sources = pools

        def fleet_figures(self) -> None:
            return None

    small = Small()
    gone = weakref.ref(small)
    watch = TelemetryDispatcherObserver(board.telemetry(), Events(), "", lambda: 0.0)
    DispatcherCollector.of(board.registry).add(small)
    assert board["pending_requests"] == 7
    del small
    gc.collect()
    assert gone() is None
    assert board["pending_requests"] == 0
    watch.close()


ONCE = catalog(work={"policy": UNGUARDED})


async def test_each_reply_is_counted_in_one_disposition(board: Board) -> None:
    async with Peer.as_service() as peer, telling(board.telemetry(), ONCE) as dispatcher:
        call = asyncio.create_task(dispatcher.execute("work"))
        _, properties = await peer.request()
        await peer.answer(properties, "done")
        await call
        assert board.replies() == {"matched": 1}
        await peer.answer(properties, "done")
        await idle()
        assert board.replies() == {"matched": 1, "duplicate": 1}

        await dispatcher.execute("work", timeout=1)
        _, properties = await peer.request()
        await peer.answer(properties, "done")
        await idle()
        assert board.replies() == {"matched": 1, "duplicate": 1, "late": 1}

        call = asyncio.create_task(dispatcher.execute("work"))
        _, properties = await peer.request()
        await peer.answer(properties, payload=b"{")
        await call
        assert board.replies() == {"matched": 1, "duplicate": 1, "late": 1, "malformed": 1}

        await peer.send(RESPONSES, b"{}", {Property.ID: "somebody-elses"})
        await peer.send(RESPONSES, b"{}", {})
        await idle()
        assert board.replies() == {"matched": 1, "duplicate": 1, "late": 1, "malformed": 1}, (
            "nobody knows whose they are"
        )
        assert board.replies("_OTHER") == {"unknown": 1, "malformed": 1}
        counted = dispatcher.reply_counts()
        assert sum(counted.values()) == sum((*board.replies().values(), *board.replies("_OTHER").values()))


async def test_chunks_are_replies(board: Board) -> None:
    async with Peer.as_service() as peer, telling(board.telemetry(), ONCE) as dispatcher:
        call = asyncio.create_task(dispatcher.execute("work"))
        _, properties = await peer.request()
        for index in (0, 1, 1, 2):
            await peer.answer(properties, "x", end=index == 2, chunk=str(index))
        assert (await call).text == "xxx"
        assert board.replies() == {"matched": 3, "duplicate": 1}


async def test_a_lost_reply_that_is_sent_again_is_a_retransmission_of_the_instance() -> None:
    board, injector = Board(), FaultInjector()
    async with contextlib.AsyncExitStack() as stack:
        transport = FaultyTransport(MemoryTransport(BROKER), injector)
        await transport.start()
        stack.push_async_callback(transport.close)
        await stack.enter_async_context(serving(lambda _: "done", broker=transport, telemetry=board.telemetry()))
        dispatcher = await stack.enter_async_context(telling(board.telemetry(), ONCE))
        await dispatcher.call("work")  # the instance is known from now on
        assert board["session_probes_total callee"] == 0
        injector.inject(Faults(drop=1, topics="*/dispatch-reply-*", direction="out"))
        call = asyncio.create_task(dispatcher.execute("work"))
        await idle()
        injector.heal()
        assert (await call).ok
        assert injector.count["out drop"] >= 1
        assert board["session_probes_total callee"] >= 1
        assert board.replies() == {"matched": 2}


async def test_a_tool_that_takes_long_costs_no_further_packets(board: Board) -> None:
    slow = reply_after(0.4)
    async with serving(slow, telemetry=board.telemetry()) as server, telling(board.telemetry(), ONCE) as dispatcher:
        assert (await dispatcher.execute("work")).ok
        assert (server.requests, server.repeats) == (1, 0)
        assert board["session_frames_sent_total caller"] == 2, "PING after the handshake, and REQUEST"
        assert board["session_frames_sent_total callee"] == 1
        assert board["session_probes_total caller"] == board["session_duplicates_total callee"] == 0


async def test_successful_and_failed_reloads_are_counted(tmp_path: Path, board: Board) -> None:
    (tmp_path / "tool").mkdir()
    (tmp_path / "tool" / "bad.json").write_text("{")
    async with telling(board.telemetry(), catalog(one={}, two={})) as dispatcher:
        assert board["catalog_tools code"] == 2
        await dispatcher.reload(catalog(one={}))
        await dispatcher.reload(policy=Policy(timeout=3))
        with pytest.raises(CatalogError):
            await dispatcher.reload(tmp_path)
        with pytest.raises(PolicyError):
            await dispatcher.reload(
                catalog(one={"policy": {"retry": {"max-backoff": 0.5}}}),
                policy=Policy(retry=Retry(initial_backoff=1.0)),
            )
        now = board.read()
        assert {key: n for key, n in now.items() if key.startswith("catalog_")} == {
            "catalog_reloads_total code ok": 2,
            f"catalog_reloads_total folder:{tmp_path} ok": 0,
            f"catalog_reloads_total folder:{tmp_path} failed": 1,
            "catalog_reloads_total code failed": 1,
            "catalog_tools code": 1,
            "catalog_source_up code": 1,
            "catalog_refused_items code": 0,
            "catalog_held_changes code": 0,
            "catalog_last_reload_successful code": 0,
            f"catalog_last_reload_successful folder:{tmp_path}": 0,
        }


async def test_instances_by_state() -> None:
    board, well = Board(), asyncio.Event()
    stuck = wait_at(well)
    tools = catalog(work={"idempotent": True, "policy": {"attempt-timeout": 0.5, "timeout": 5, "breaker": None}})
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(serving(stuck, instance="stuck"))
        other = await stack.enter_async_context(contextlib.AsyncExitStack())
        await other.enter_async_context(serving(lambda _: "done", instance="fine"))
        dispatcher = await stack.enter_async_context(telling(board.telemetry(), tools))
        for _ in range(40):
            assert (await dispatcher.execute("work")).ok
        now = board.read()
        assert now["instance_ejections_total lab stuck failures"] == 1
        views = {view.id: view for view in dispatcher.instances("lab")}
        assert views["stuck"].state == "ejected"
        assert now["instances lab ejected"] == now[f"instances lab {views['fine'].state}"] == 1
        assert sum(now[f"instances lab {state}"] for state in ("up", "warming", "paused", "ejected")) == 2
        assert now["instance_inflight_calls lab fine"] == now["instance_inflight_calls lab stuck"] == 0

        await other.aclose()  # it says that it leaves
        call = asyncio.create_task(dispatcher.execute("work"))
        await idle()
        now = board.read()
        assert sum(now[f"instances lab {state}"] for state in ("up", "warming", "paused", "ejected")) == 1
        assert now["instance_inflight_calls lab stuck"] == 1
        assert "instance_inflight_calls lab fine" not in now
        well.set()
        assert (await call).ok


async def test_ejections_of_an_instance_that_left_are_removed(board: Board) -> None:
    async with serving(lambda _: "done", instance="stays"), telling(board.telemetry(), ONCE) as dispatcher:
        async with serving(lambda _: "done", instance="leaves"):
            await dispatcher.execute("work")
            await advance(12)  # until it is looked who is there
            await dispatcher.execute("work")
            dispatcher._running.observer.on_instance_change("lab", "leaves", "ejected", "success-rate")
            assert board["instance_ejections_total lab leaves success-rate"] == 1
        await dispatcher.execute("work")
        assert board.of("leaves") == []


async def test_the_connection_to_the_broker(board: Board) -> None:
    transport = MemoryTransport(BROKER)
    async with Dispatcher(transport, ONCE, telemetry=board.telemetry()), telling(board.telemetry(), ONCE):
        assert board["broker_connected"] == 2
        await transport.close()
        assert board["broker_connected"] == 1


async def test_calls_and_requests_in_flight(board: Board) -> None:
    async with telling(board.telemetry(), Catalog.empty()):
        assert board[f"build_info {__version__}"] == 1


ACTIVATIONS = by_profile(short=100, long=2_000)
UP, TOOLS, REFUSED, HELD = (f"catalog_{name} desk" for name in ("source_up", "tools", "refused_items", "held_changes"))


def read_sources(board: Board) -> dict[str, float]:
    return {key: value for key, value in board.read().items() if key in (UP, TOOLS, REFUSED, HELD)}


async def test_the_gauges_of_a_source_follow_it(tmp_path: Path) -> None:
    board, source = Board(), TroubledSource()
    async with telling(board.telemetry(), source, approvals=tmp_path / "approved.json") as dispatcher:
        events: list[Event] = []
        dispatcher.on_event(events.append)
        assert read_sources(board) == {UP: 1, TOOLS: 1, REFUSED: 0, HELD: 0}

        source.deliver(SOUND[0], CHANGED, INVALID)
        await advance(1)
        assert read_sources(board) == {UP: 1, TOOLS: 1, REFUSED: 1, HELD: 1}

        source.fail()
        await advance(1)
        assert read_sources(board) == {UP: 0, TOOLS: 1, REFUSED: 1, HELD: 1}, "its last items are in force"

        source.deliver(*SOUND)
        await advance(1)
        assert read_sources(board) == {UP: 1, TOOLS: 1, REFUSED: 0, HELD: 0}

        assert [type(event) for event in events] == [ItemRefused, ChangeHeld, SourceChanged, SourceChanged]
        await dispatcher.registry.remove_source("desk")
        assert board.of("desk") == []


async def test_a_source_that_has_never_answered_is_down(tmp_path: Path) -> None:
    board, source = Board(), TroubledSource()
    source.fail()
    async with telling(board.telemetry(), source, approvals=tmp_path / "approved.json"):
        assert read_sources(board) == {UP: 0, TOOLS: 0, REFUSED: 0, HELD: 0}
        source.deliver(*SOUND)
        await advance(1)
        assert read_sources(board) == {UP: 1, TOOLS: 1, REFUSED: 0, HELD: 0}


async def test_of_two_dispatchers_one_that_fails_counts(tmp_path: Path) -> None:
    board, sources = Board(), (TroubledSource(), TroubledSource())
    async with (
        telling(board.telemetry(), sources[0], approvals=tmp_path / "a.json"),
        telling(board.telemetry(), sources[1], approvals=tmp_path / "b.json"),
    ):
        assert (board[UP], board[TOOLS]) == (1, 2)
        sources[0].fail()
        await advance(1)
        assert (board[UP], board[TOOLS]) == (0, 2)


async def test_what_is_shadowed_from_the_start_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    line = "item of code-2 shadowed: 'one' (code-2) is not in force, because code (code) precedes it"

    def count_lines() -> int:
        return [record.getMessage() for record in caplog.records].count(line)

    async with telling(Board().telemetry(), [catalog(one={}), catalog(one={})]) as dispatcher:
        assert count_lines() == 1
        await dispatcher.registry.put("tool-service", SERVICE)  # another activation
        assert count_lines() == 1


@pytest.mark.long
async def test_series_stay_the_same_over_many_activations(board: Board) -> None:
    async with telling(board.telemetry(), catalog(one={})) as dispatcher:
        await dispatcher.registry.put("tool-service", SERVICE)
        await dispatcher.registry.put("tool", TOOL)
        series = set(board.read())
        for turn in range(ACTIVATIONS):
            await dispatcher.registry.put("tool", {**TOOL, "description": f"Stamps form {turn}."})
            if turn % 10 == 0:
                source = TroubledSource(f"desk-{turn}", on_change="apply")
                await dispatcher.registry.add_source(source)
                await dispatcher.registry.remove_source(source.id)
        assert set(board.read()) == series
