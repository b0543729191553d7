"""One line for each transition, with its facts as fields and limited in rate; none for calls by default."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from dispatch import CatalogError, Dispatcher, ToolError
from dispatch.telemetry.events import MAX_KEYS, REPEAT_INTERVAL_S, TransitionLogger
from tests.helpers.clock import advance
from tests.helpers.dispatcher_and_service import catalog, serving
from tests.helpers.telemetry_capture import Board, Spans, telling
from tests.unit.telemetry.test_events import FRAGILE, fail


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
