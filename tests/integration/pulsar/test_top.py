"""``dispatch top`` finds the processes of a fleet by their announcements on a broker, and shows which one was killed."""

from __future__ import annotations

import asyncio
import json
import secrets
import signal
from pathlib import Path

import pytest

import dispatch
from benchmarks.harness.broker import Endpoint
from dispatch.admin import Admin
from tests.helpers.cli_processes import WAIT_S, ended, started
from tests.integration.pulsar.test_announced_services import seen

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
