"""Actions of operators: their effect, their trace, and their end."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import httpx2
import pytest

import dispatch
from dispatch import RejectedError
from tests.helpers.admin_endpoint import Observed, eventually, observed

pytestmark = pytest.mark.wall_clock


async def act(it: Observed, path: str, status: int = 200, **body: Any) -> Any:
    response = await it.client.post(path, json={"user": "alice", "reason": "wrong prices", **body})
    assert response.status_code == status, response.text
    return response.json()


async def test_a_circuit_is_forced_open_and_closed_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dispatch.audit")
    async with observed() as it:
        event = await act(it, "/api/circuits/price", action="open")
        assert (event["action"], event["target"], event["user"], event["until"]) == (
            "open",
            "circuit price",
            "alice",
            None,
        )
        with pytest.raises(RejectedError, match="circuit breaker"):
            await it.dispatcher.call("price", {"item": "a"})
        (circuit,) = await it.get("/api/circuits")
        assert circuit["state"] == "forced-open"
        await act(it, "/api/circuits/price", action="close")
        assert await it.dispatcher.call("price", {"item": "a"}) == "3"
    assert "action: open circuit price by 'alice' (wrong prices)" in caplog.text


async def test_an_action_with_a_duration_is_undone() -> None:
    async with observed() as it:
        event = await act(it, "/api/circuits/price", action="open", **{"for": 0.2})
        (circuit,) = await it.get("/api/circuits")
        assert circuit["until"] == pytest.approx(event["until"], abs=0.1)

        async def is_closed() -> bool:
            return bool((await it.get("/api/circuits"))[0]["state"] == "closed")

        await eventually(is_closed)
        undone = next(each for each in await it.get("/api/events") if each["event"] == "action")
        assert (undone["action"], undone["reason"]) == ("reset", "0.2 s are over")


async def test_an_instance_is_ejected_until_it_is_admitted() -> None:
    async with observed() as it:
        await it.dispatcher.call("price", {"item": "a"})
        await act(it, "/api/instances/shop-1", action="eject")
        (instance,) = await it.get("/api/instances")
        assert (instance["state"], instance["is_held"], instance["seconds_left"]) == ("ejected", True, None)
        assert await it.dispatcher.call("price", {"item": "a"}) == "3"  # it is the only one: panic mode
        assert (await it.get("/api/instances"))[0]["state"] == "ejected"
        await act(it, "/api/instances/shop-1", action="admit")
        assert (await it.get("/api/instances"))[0]["state"] in ("up", "warming")


async def test_a_service_is_drained_at_its_own_endpoint() -> None:
    async with observed() as it:
        await act(it, f"{it.server.admin_url}/api/instances/shop-1", action="drain")
        assert (await it.client.get(f"{it.server.admin_url}/readyz")).status_code == 503
        for path in ("circuits/price", "sources/announced/refresh", "tools/price/approve"):
            await act(it, f"{it.server.admin_url}/api/{path}", 404)


async def test_the_level_of_a_logger_is_set_for_a_while() -> None:
    logger = logging.getLogger("dispatch.calls")
    before = logger.level
    async with observed() as it:
        await act(it, "/api/log-level", level="DEBUG", logger="dispatch.calls", **{"for": 0.1})
        assert logger.level == logging.DEBUG
        await eventually(lambda: logger.level == before)


async def test_the_latest_action_on_a_target_replaces_the_earlier_ones_and_their_end() -> None:
    clock = logging.getLogger("dispatch.clock")
    logger = logging.getLogger("dispatch.calls")
    before, clock_before = logger.level, clock.level
    async with observed() as it:
        await it.dispatcher.call("price", {"item": "a"})
        await act(it, "/api/instances/shop-1", action="eject", **{"for": 0.2})
        await act(it, "/api/circuits/price", action="open", **{"for": 0.2})
        await act(it, "/api/log-level", level="DEBUG", logger="dispatch.calls", **{"for": 60})
        await act(it, "/api/instances/shop-1", action="eject", **{"for": 60})
        await act(it, "/api/circuits/price", action="disable")
        await act(it, "/api/log-level", level="ERROR", logger="dispatch.calls", **{"for": 0.2})
        await act(it, "/api/log-level", level="DEBUG", logger="dispatch.clock", **{"for": 0.3})
        await eventually(lambda: clock.level == clock_before)
        assert logger.level == before
        (instance,) = await it.get("/api/instances")
        assert instance["is_held"]
        assert 50 < instance["seconds_left"] <= 60
        assert (await it.get("/api/circuits"))[0]["state"] == "disabled"
        await act(it, "/api/instances/shop-1", action="eject")
        assert (await it.get("/api/instances"))[0]["seconds_left"] is None


async def test_versions_are_targets_and_the_default_one_has_two_names() -> None:
    service = {"id": "lab", "request-queue": "request:tg:lab", "response-queue": "response:tg:lab"}
    tools = [
        {"type": "tool-service", "name": "work", "description": "Works", "service": "lab", "version": version}
        for version in ("1.0.0", "2.0.0")
    ]
    async with (
        dispatch.connect("memory://versions", dispatch.Catalog.of([service], tools), admin="127.0.0.1:0") as dispatcher,
        httpx2.AsyncClient(base_url=dispatcher.admin_url or "", trust_env=False) as client,
    ):
        it = Observed(dispatcher, None, client)  # type: ignore[arg-type] # no service
        default = (await it.get("/api/tools/work"))["version"]
        other = {"1.0.0": "2.0.0", "2.0.0": "1.0.0"}[default]
        await act(it, "/api/circuits/work", action="open", **{"for": 0.1})
        event = await act(it, "/api/circuits/work", action="open", version=default)
        assert (event["target"], event["until"]) == (f"circuit work {default}", None)
        await act(it, "/api/circuits/work", action="open", version=other, **{"for": 0.2})

        async def states() -> dict[str, str]:
            return {each["version"]: each["state"] for each in await it.get("/api/circuits")}

        async def is_closed() -> bool:
            return (await states())[other] == "closed"

        await eventually(is_closed)
        assert (await states())[default] == "forced-open"


async def test_a_service_that_is_called_without_a_tool_is_listed_and_has_a_circuit() -> None:
    service = {"id": "lab", "request-queue": "request:tg:lab", "response-queue": "response:tg:lab"}
    async with (
        dispatch.connect("memory://lab", dispatch.Catalog.of([service], []), admin="127.0.0.1:0") as dispatcher,
        httpx2.AsyncClient(base_url=dispatcher.admin_url or "", trust_env=False) as client,
    ):
        it = Observed(dispatcher, None, client)  # type: ignore[arg-type] # no service
        (row,) = await it.get("/api/tools")
        assert (row["name"], row["service"], row["circuit"]) == ("service:lab", "lab", None)
        await act(it, "/api/circuits/service:lab", action="open")
        tool = await it.get("/api/tools/service:lab")
        assert (tool["circuit"], tool["circuits"][0]["state"]) == ("forced-open", "forced-open")
        assert [each["target"] for each in tool["events"] if each["event"] == "action"] == ["circuit service:lab"]
        page = await client.get("/tools/service%3Alab", headers={"Accept": "text/html"})
        assert page.status_code == 200
        await act(it, "/api/circuits/service:nothing", 404, action="open")


async def test_a_source_is_read_again_and_a_held_definition_is_approved(tmp_path: Path) -> None:
    folder = tmp_path / "tools"
    (folder / "tool-service").mkdir(parents=True)
    (folder / "tool").mkdir()
    (folder / "tool-service" / "lab.json").write_text(
        '{"id": "lab", "request-queue": "request:tg:lab", "response-queue": "response:tg:lab"}'
    )
    tool = folder / "tool" / "work.json"

    def write(description: str) -> None:
        tool.write_text(f'{{"type": "tool-service", "name": "work", "description": "{description}", "service": "lab"}}')

    write("Works")
    source = dispatch.Folder(folder, on_change="hold", watch=False)
    async with (
        dispatch.connect(
            "memory://held", source, approvals=tmp_path / "approved.json", admin="127.0.0.1:0"
        ) as dispatcher,
        httpx2.AsyncClient(base_url=dispatcher.admin_url or "", trust_env=False) as client,
    ):
        it = Observed(dispatcher, None, client)  # type: ignore[arg-type] # no service
        write("Works harder")
        (before,) = await it.get("/api/sources")
        await act(it, f"/api/sources/{before['id']}/refresh")
        (held,) = (await it.get("/api/sources"))[0]["held"]
        assert (held["name"], dispatcher.catalog.tools["work"].description) == ("work", "Works")
        approve = f"/api/tools/{held['name']}/approve"
        await act(it, approve, 404, fingerprint="0" * 64)
        await act(it, approve, fingerprint=held["new"])
        await eventually(lambda: dispatcher.catalog.tools["work"].description == "Works harder")


async def test_a_mistake_changes_nothing_and_says_what_to_do() -> None:
    cases: list[tuple[str, dict[str, Any], int, str]] = [
        ("/api/circuits/price", {"action": "melt"}, 400, "one of open, close, reset, disable"),
        ("/api/circuits/price", {"action": "open", "reason": " "}, 400, "Give a 'reason'"),
        ("/api/circuits/price", {"action": "open", "user": ""}, 400, "Name who acts"),
        ("/api/circuits/price", {"action": "open", "for": -1}, 400, "'for'"),
        ("/api/circuits/price", {"action": "open", "until": 1}, 400, "unknown field"),
        ("/api/circuits/pric", {"action": "open"}, 404, "price"),
        ("/api/instances/shop-1", {"action": "drain"}, 400, "the service's own process"),
        ("/api/instances/shop-9", {"action": "eject"}, 404, "shop-9"),
        ("/api/sources/nothing/refresh", {}, 404, "announced"),
        ("/api/log-level", {"level": "DEBUG", "logger": "root"}, 400, "'logger'"),
        ("/api/log-level", {"level": "ERROR", "logger": "dispatch.audit"}, 400, "each action"),
        ("/api/log-level", {"level": "LOUD"}, 400, "'level'"),
        ("/api/nothing", {}, 404, "no such page"),
        ("/api/tools", {}, 405, "GET"),
    ]
    async with observed() as it:
        for path, body, status, text in cases:
            assert text in (await act(it, path, status, **body))["error"], (path, body)
        assert not [each for each in await it.get("/api/events") if each["event"] == "action"]
