"""Metrics of services, their instances and the catalogue."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

from dispatch import Catalog, CatalogError, Dispatcher, Policy, PolicyError, Retry, __version__
from dispatch.messaging.wire import Property
from dispatch.testing import FaultInjector, Faults, FaultyTransport
from dispatch.transports.memory import MemoryTransport
from tests.helpers.clock import advance, idle
from tests.helpers.dispatcher_and_service import BROKER, RESPONSES, UNGUARDED, Peer, catalog, serving
from tests.helpers.telemetry_capture import Board, telling

ONCE = catalog(work={"policy": UNGUARDED})


async def test_each_reply_is_counted_in_one_disposition() -> None:
    board = Board()
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


async def test_chunks_are_replies() -> None:
    board = Board()
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


async def test_a_tool_that_takes_long_costs_no_further_packets() -> None:
    board = Board()

    async def slow(_: dict[str, Any]) -> str:
        await asyncio.sleep(0.4)
        return "done"

    async with serving(slow, telemetry=board.telemetry()) as server, telling(board.telemetry(), ONCE) as dispatcher:
        assert (await dispatcher.execute("work")).ok
        assert (server.requests, server.repeats) == (1, 0)
        assert board["session_frames_sent_total caller"] == 2, "PING after the handshake, and REQUEST"
        assert board["session_frames_sent_total callee"] == 1
        assert board["session_probes_total caller"] == board["session_duplicates_total callee"] == 0


async def test_successful_and_failed_reloads_are_counted(tmp_path: Path) -> None:
    board = Board()
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

    async def stuck(_: dict[str, Any]) -> str:
        await well.wait()
        return "done"

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


async def test_ejections_of_an_instance_that_left_are_removed() -> None:
    board = Board()
    async with serving(lambda _: "done", instance="stays"), telling(board.telemetry(), ONCE) as dispatcher:
        async with serving(lambda _: "done", instance="leaves"):
            await dispatcher.execute("work")
            await advance(12)  # until it is looked who is there
            await dispatcher.execute("work")
            dispatcher._running.observer.on_instance_change("lab", "leaves", "ejected", "success-rate")
            assert board["instance_ejections_total lab leaves success-rate"] == 1
        await dispatcher.execute("work")
        assert board.of("leaves") == []


async def test_the_connection_to_the_broker() -> None:
    board = Board()
    transport = MemoryTransport(BROKER)
    async with Dispatcher(transport, ONCE, telemetry=board.telemetry()), telling(board.telemetry(), ONCE):
        assert board["broker_connected"] == 2
        await transport.close()
        assert board["broker_connected"] == 1


async def test_calls_and_requests_in_flight() -> None:
    board = Board()
    async with telling(board.telemetry(), Catalog.empty()):
        assert board[f"build_info {__version__}"] == 1
