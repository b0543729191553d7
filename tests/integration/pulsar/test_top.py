"""``dispatch top`` finds the processes of a fleet by their announcements on a broker, and shows which one was killed."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import signal
import urllib.request
from pathlib import Path
from typing import Any

import pytest

import dispatch
from benchmarks.harness.broker import Endpoint
from dispatch.admin import Admin
from dispatch.announcements import admin_topic, question_topic
from dispatch.messaging.wire import TopicName
from dispatch.transports import Security
from tests.helpers.admin_endpoint import eventually
from tests.helpers.cli_processes import WAIT_S, ended, started
from tests.helpers.secured_broker import SecuredBroker
from tests.integration.pulsar.test_announced_services import permit, seen

pytestmark = pytest.mark.pulsar

SHOP = '''
def price(product: str) -> str:
    """Price of a product."""
    return f"price of {product}"
'''
TOKEN = "a-token-of-an-operator"


@pytest.mark.soak
async def test_a_killed_process_is_named(pulsar_endpoint: Endpoint, tmp_path: Path) -> None:
    url, name = pulsar_endpoint.service_url, f"shop-{secrets.token_hex(4)}"
    topic = f"non-persistent://tg/notify/tools-{name}"
    (tmp_path / f"{name}.py").write_text(SHOP)
    options = ("--instance", "shop-1", "--announce", topic, "--broker", url, "--admin", "127.0.0.1:0")
    with started("serve", str(tmp_path / f"{name}.py"), *options) as shop:
        await asyncio.to_thread(shop.err.wait_for, "Admin: ")
        admin = Admin("127.0.0.1:0", act={"alice": TOKEN})
        async with dispatch.connect(url, dispatch.Announced(topic=topic), admin=admin) as agent:
            await seen(agent, "price", within=WAIT_S)
            assert await agent.call("price", {"product": "lamp"}) == "price of lamp"
            assert agent.admin_url is not None

            async def top(*arguments: str, **env: str) -> tuple[int, str, str]:
                return await asyncio.to_thread(ended, "top", *arguments, **env)

            code, out, err = await top("--broker", url, DISPATCH_ANNOUNCEMENTS=topic)
            assert (code, "0 dispatchers, 1 service" in out, name in out) == (0, True, True), out + err
            code, out, _ = await top(agent.admin_url)
            assert (code, "answers 401" in out, TOKEN in out) == (1, True, False)
            code, out, _ = await top(agent.admin_url, "--json", DISPATCH_ADMIN_TOKEN=TOKEN)
            values = json.loads(out)
            assert [(each["kind"], each["state"]) for each in values["processes"]] == [
                ("dispatcher", "ready"),
                ("service", "ready"),
            ]
            (instance,) = values["instances"]
            assert (instance["id"], instance["requests"]) == ("shop-1", 1)
            screen = ("top", agent.admin_url, "--every", "0.2")
            with started(*screen, terminal=True, keyboard=True, DISPATCH_ADMIN_TOKEN=TOKEN) as program:
                await asyncio.to_thread(program.out.wait_for, "1 dispatcher, 1 service")
                shop.process.send_signal(signal.SIGKILL)
                await asyncio.to_thread(program.out.wait_for, "service shop-1 is unreachable")
                await asyncio.to_thread(program.out.wait_for, f"instance shop-1 of {name} left")
                program.press("q")
                assert await asyncio.to_thread(program.wait) == 0


def read(url: str, path: str, accept: str = "*/*") -> str:
    """Return what an admin endpoint answers."""
    request = urllib.request.Request(f"{url}{path}", headers={"Accept": accept})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=20) as answer:
        return str(answer.read().decode())


def peers(url: str) -> dict[str, str]:
    """Return the processes that an agent knows, by their URLs."""
    return {each["url"]: each["name"] for each in json.loads(read(url, "/api/peers"))}


@pytest.mark.process
async def test_agents_and_services_are_found_by_their_announcements(pulsar_endpoint: Endpoint, tmp_path: Path) -> None:
    url, name = pulsar_endpoint.service_url, f"shop-{secrets.token_hex(4)}"
    env = {"DISPATCH_ANNOUNCEMENTS": f"non-persistent://tg/notify/tools-{name}"}
    (tmp_path / f"{name}.py").write_text(SHOP)
    common = ("--broker", url, "--admin", "127.0.0.1:0")
    mcp = ("mcp", "--http", "127.0.0.1:0", *common)
    for kind in ("tool", "tool-service"):
        (tmp_path / "tools" / kind).mkdir(parents=True)

    async def address(program: Any) -> str:
        await asyncio.to_thread(program.err.wait_for, "Admin: ")
        return str(program.err.text().partition("Admin: ")[2].split()[0]).rstrip("/.")

    async def top() -> dict[str, tuple[str, str]]:
        code, out, err = await asyncio.to_thread(ended, "top", "--broker", url, "--json", **env)
        assert code == 0, out + err
        return {each["url"]: (each["kind"], each["state"]) for each in json.loads(out)["processes"]}

    with (
        started("serve", str(tmp_path / f"{name}.py"), "--instance", "shop-1", *common, **env) as shop,
        started(*mcp, "--announced", **env) as first,
        started(*mcp, "--catalog", str(tmp_path / "tools"), **env) as second,  # no announced services
    ):
        services, one, two = [await address(each) for each in (shop, first, second)]
        await eventually(lambda: asyncio.to_thread(lambda: peers(one).keys() == {services, two}))
        ready = {one: ("dispatcher", "ready"), two: ("dispatcher", "ready"), services: ("service", "ready")}
        await eventually(lambda: asyncio.to_thread(lambda: '"ready":true' in read(two, "/readyz").replace(" ", "")))
        assert await top() == ready
        code, out, err = await asyncio.to_thread(ended, "calls", "--broker", url, "--json", **env)
        assert (code, json.loads(out)) == (0, {"calls": [], "unreachable": []}), err

        second.process.send_signal(signal.SIGKILL)
        await eventually(lambda: asyncio.to_thread(lambda: "out of reach" in read(one, "/", "text/html")))
        assert peers(one).keys() == {services, two}
        found = await top()
        assert found == {**ready, two: ("process", "unreachable")}

        shop.terminate()
        assert await asyncio.to_thread(shop.wait) == 0
        await eventually(lambda: asyncio.to_thread(lambda: services not in peers(one)))
        assert services not in await top()


async def test_an_agent_with_the_usual_rights_works_and_names_the_fix_and_is_found_with_two_grants(
    secured_broker: SecuredBroker, caplog: pytest.LogCaptureFixture
) -> None:
    role = f"agent-{secrets.token_hex(4)}"
    topic = f"non-persistent://tg/notify/tools-{role}"
    rights = {"request": "produce", "response": "consume", "notify": "consume"}
    for namespace, action in rights.items():
        await asyncio.to_thread(permit, secured_broker, f"tg/{namespace}", role, action)
    url, own = secured_broker.service_url, Security(token=secured_broker.token(role))

    def connect(name: str) -> dispatch.Dispatcher:
        return dispatch.connect(url, dispatch.Announced(topic=topic), security=own, admin="127.0.0.1:0", client_id=name)

    with caplog.at_level(logging.WARNING):
        async with connect("agent-1") as one:
            await eventually(lambda: "admin endpoint of agent-1" in caplog.text)
            assert one.admin_url is not None
            assert json.loads(await asyncio.to_thread(read, one.admin_url, "/readyz"))["ready"]
    (line,) = [each.getMessage() for each in caplog.records if "admin endpoint of" in each.getMessage()]
    assert f"is not announced on {admin_topic(topic)}, so that others do not find it" in line
    assert line.endswith("Name its URL: 'dispatch top URL', --peer or Admin(peers=…).")
    for each, action in ((admin_topic(topic), "produce"), (question_topic(admin_topic(topic)), "consume")):
        name = TopicName.parse(each)
        await asyncio.to_thread(permit, secured_broker, f"{name.namespace_path}/{name.name}", role, action)
    async with connect("agent-1") as one, connect("agent-2") as two:
        assert one.admin_url is not None
        assert two.admin_url is not None
        await eventually(lambda: asyncio.to_thread(lambda: peers(str(one.admin_url)) == {two.admin_url: "agent-2"}))
        await eventually(lambda: asyncio.to_thread(lambda: peers(str(two.admin_url)) == {one.admin_url: "agent-1"}))
