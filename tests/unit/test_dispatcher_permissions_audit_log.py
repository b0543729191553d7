"""The audit log: one line for each decision on a tool with permissions."""

from __future__ import annotations

import json
import logging

import pytest

from dispatch import Telemetry
from tests.helpers.dispatcher_and_service import serving
from tests.helpers.permitting_dispatcher import GRANTS, Directory, permitting
from tests.helpers.telemetry_capture import Spans


async def test_each_decision_on_a_tool_with_permissions_has_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dispatch.audit")
    async with serving(lambda _: "done"), permitting(GRANTS) as dispatcher:
        await dispatcher.call("jokes", {"secret": "4711"}, user="alice")
        for user in ("bob", "mallory", ""):
            await dispatcher.execute("jokes", {"secret": "4711"}, user=user)
        await dispatcher.call("jokers", user="bob")
        await dispatcher.tools(user="bob")
    assert [record.getMessage() for record in caplog.records] == [
        "allowed: 'jokes' for user 'alice' (granted)",
        "refused: 'jokes' for user 'bob' (not-granted tools:jokes)",
        "refused: 'jokes' for user 'mallory' (denied tools:jokes)",
        "refused: 'jokes' for user '' (not-granted tools:jokes)",
    ]
    facts = [
        {key: value for key, value in vars(each).items() if key.startswith("dispatch_")} for each in caplog.records
    ]
    assert facts[1] == {
        "dispatch_user": "bob",
        "dispatch_tool": "jokes",
        "dispatch_decision": "refused",
        "dispatch_reason": "not-granted",
        "dispatch_permission": "tools:jokes",
        "dispatch_trace_id": "",
    }
    assert "4711" not in json.dumps([vars(each) for each in caplog.records], default=str)


async def test_a_name_cannot_forge_a_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dispatch.audit")
    async with permitting(GRANTS) as dispatcher:
        await dispatcher.execute("jokes", user="bob' (granted)\nallowed: 'x")
    (record,) = caplog.records
    assert "\n" not in record.getMessage()


async def test_unavailable_permissions_and_missing_grants_have_their_reason(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dispatch.audit")
    directory = Directory()
    directory.error = RuntimeError("down")
    for grants in (directory, None):
        async with permitting(grants) as dispatcher:
            await dispatcher.execute("jokes", user="alice")
    records = [vars(record) for record in caplog.records if record.name == "dispatch.audit"]
    assert [each["dispatch_reason"] for each in records] == ["unavailable", "no-grants"]


async def test_a_line_names_the_trace_of_the_call(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dispatch.audit")
    spans = Spans()
    async with permitting(GRANTS, telemetry=spans.telemetry()) as dispatcher:
        await dispatcher.execute("jokes", user="bob")
    context = spans.one("execute_tool").context
    assert context is not None
    (record,) = caplog.records
    assert vars(record)["dispatch_trace_id"] == f"{context.trace_id:032x}"
    caplog.clear()
    with spans.provider.get_tracer("agent").start_as_current_span("agent") as span:
        async with permitting(GRANTS, telemetry=Telemetry(traces="off", metrics=False)) as dispatcher:
            await dispatcher.execute("jokes", user="bob")
        async with permitting(GRANTS, telemetry=Telemetry(traces="propagation-only", metrics=False)) as dispatcher:
            await dispatcher.execute("jokes", user="bob")
    traces = {vars(record)["dispatch_trace_id"] for record in caplog.records}
    assert traces == {f"{span.get_span_context().trace_id:032x}"}
