"""``dispatch relay`` as a process: signals, reloads, and what it tells systemd."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dispatch
from benchmarks.harness.broker import Endpoint
from tests.helpers.catalogs import catalog_of, unique_topic
from tests.helpers.cli_processes import started
from tests.helpers.dispatcher_and_service import Service

pytestmark = pytest.mark.pulsar


class Systemd:
    """The socket of a service manager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fed = False
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.settimeout(30)

    def receive(self) -> str:
        """The next message; those of the watchdog are left out."""
        while (message := self._socket.recv(1_024).decode()) == "WATCHDOG=1":
            self.fed = True
        return message

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Systemd]:
    made = Systemd(tmp_path / "notify")
    yield made
    made.close()


def write_config(folder: Path, topic: str, **keys: Any) -> Path:
    topics = {
        "request-queue": f"non-persistent://tg/request/{topic}",
        "response-queue": f"non-persistent://tg/response/{topic}",
    }
    instance = {"id": "one", **{key: f"{value}-1" for key, value in topics.items()}}
    tool = {"type": "tool-service", "name": "echo", "description": "Echoes.", "service": "echo"}
    files = {
        "tools/tool-service/echo.json": {"id": "echo", **topics, "instances": [instance]},
        "tools/tool/echo.json": tool,
        "relay.json": {"catalog": ["tools"], **keys},
    }
    for name, raw in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(raw))
    return folder / "relay.json"


async def test_a_relay_starts_reloads_and_stops(pulsar_endpoint: Endpoint, tmp_path: Path, systemd: Systemd) -> None:
    url, topic = pulsar_endpoint.service_url, unique_topic("relayed")
    config = write_config(tmp_path, topic)
    options = ("--config", str(config), "--broker", url)

    async def wait() -> str:
        return await asyncio.to_thread(systemd.receive)

    is_called = asyncio.Event()

    async def slowly(arguments: dict[str, Any]) -> str:
        if arguments["seconds"]:
            is_called.set()
        await asyncio.sleep(arguments["seconds"])
        return "done"

    with started("relay", *options, NOTIFY_SOCKET=str(systemd.path), WATCHDOG_USEC="400000") as relay:
        async with (
            dispatch.ToolServer(Service(slowly), url, service=f"{topic}-1"),
            dispatch.connect(url, catalog_of(topic)) as dispatcher,
        ):
            assert await wait() == "READY=1"
            assert await dispatcher.call("echo", {"seconds": 0}) == "done"
            relay.process.send_signal(signal.SIGHUP)
            assert (await wait()).startswith("RELOADING=1\nMONOTONIC_USEC=")
            assert await wait() == "READY=1"
            config.write_text('{"catalog": ["no-tools"]}')  # it is watched
            assert (await wait()).startswith("RELOADING=1")
            assert await wait() == "READY=1"
            relay.err.wait_for("Not reloaded, the former configuration stays.")
            write_config(tmp_path, topic, concurrency=7)
            assert (await wait()).startswith("RELOADING=1")
            assert await wait() == "READY=1"
            relay.err.wait_for("Reloaded: relaying 1 service.", times=2)
            call = asyncio.create_task(dispatcher.call("echo", {"seconds": 1}))
            await asyncio.wait_for(is_called.wait(), 30)
            relay.terminate()
            assert await wait() == "STOPPING=1"
            assert await call == "done"
            assert await asyncio.to_thread(relay.wait) == 0
    assert systemd.fed
    assert "Stopping: 1 call in flight." in relay.err.text()
    # A caller may send a request again that a server refused while another one took its place.
    assert re.search(r"Stopped\. [2-4] requests received\.\n$", relay.err.text())
    assert "Traceback" not in relay.err.text()


async def test_a_second_signal_cancels_the_calls_in_flight(pulsar_endpoint: Endpoint, tmp_path: Path) -> None:
    url, topic = pulsar_endpoint.service_url, unique_topic("relayed")
    is_called = asyncio.Event()

    async def hang(_arguments: dict[str, Any]) -> str:
        is_called.set()
        await asyncio.sleep(600)
        return "never"

    with started("relay", "--config", str(write_config(tmp_path, topic)), "--broker", url) as relay:
        async with (
            dispatch.ToolServer(Service(hang), url, service=f"{topic}-1"),
            dispatch.connect(url, catalog_of(topic)) as dispatcher,
        ):
            relay.err.wait_for("Relaying 1 service.")
            call = asyncio.create_task(dispatcher.call("echo"))
            await asyncio.wait_for(is_called.wait(), 30)
            relay.terminate()
            await asyncio.to_thread(relay.err.wait_for, "Stopping: 1 call in flight.")
            relay.terminate()
            with pytest.raises(dispatch.DispatchError, match="The service stopped while the tool ran"):
                await asyncio.wait_for(call, 10)
            assert await asyncio.to_thread(relay.wait) == 0
    assert relay.err.text().endswith("Stopped. 1 request received.\n")


@pytest.mark.parametrize(("how", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)], ids=["SIGTERM", "Ctrl-C"])
def test_a_signal_during_the_start_stops_it(how: signal.Signals, code: int, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"pulsar://127.0.0.1:{silent.getsockname()[1]}"
        config = write_config(tmp_path, "relayed")
        with started("relay", "--config", str(config), "--broker", url) as relay:
            silent.settimeout(30)
            silent.accept()[0].close()
            relay.process.send_signal(how)
            assert relay.wait() == code
            assert "Stopped. 0 requests received.\n" in relay.err.text()
            assert "Traceback" not in relay.err.text()
