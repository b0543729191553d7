"""``dispatch doctor`` opens a session with each instance of a service, and executes no tool."""

from __future__ import annotations

from typing import Any

from dispatch.cli.doctor import CheckResult, check_sessions
from dispatch.transports import Security
from tests.helpers.dispatcher_and_service import BROKER, Peer, Service, catalog, serving


async def checked(**service: Any) -> CheckResult:
    services = list(catalog(service=service).services.values())
    (result,) = [each async for each in check_sessions(BROKER, Security(), services)]
    return result


async def test_each_instance_is_reported() -> None:
    service = Service(lambda _arguments: "done")
    async with serving(service, instance="b") as server, serving(service, instance="a"):
        result = await checked()
        assert (result.name, result.status) == ("sessions of lab", "ok")
        one, other = result.as_dict()["sessions"]
        assert (one["instance"], other["instance"], other["incarnation"]) == ("a", "b", server.incarnation)
        for each in (one, other):
            assert 0 < each["rtt_ms"] < 1000
            assert (each["running"], each["window"], each["paths"], each["retransmissions"]) == (0, 48_000, 1, 0)
            assert each["packets"] > 5
        assert "a answers in " in result.detail
        assert "executes 0 requests, window 48,000 bytes, 1 path; b answers" in result.detail
    assert service.requests == []


async def test_its_sessions_are_ended() -> None:
    async with serving(lambda _arguments: "done") as server:
        await checked()
        table = server.session_table
        assert table is not None
        assert table.sessions == {}
        assert table.ended.reasons == {"closed": 1}


async def test_third_party_services_and_persistent_topics_have_none() -> None:
    async with Peer.as_service():
        result = await checked()
        assert result.status == "skipped"
        assert "third-party" in result.detail
        assert "sessions" not in result.as_dict()
    persistent = {f"{kind}-queue": f"persistent://tg/{kind}/lab" for kind in ("request", "response")}
    assert (await checked(**persistent)).detail == "persistent topics have the plain exchange"
