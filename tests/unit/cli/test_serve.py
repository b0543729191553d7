"""``dispatch serve``: ready, drain, stop. On the embedded broker here; as a process in integration/pulsar/test_cli.py."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from typing import Any

import pytest

from dispatch import RejectedError, ToolServer
from dispatch.cli import serve
from dispatch.server import LINGER_S
from tests.helpers.clock import advance, idle
from tests.helpers.dispatcher_and_service import BROKER, REQUESTS, RESPONSES, Service, dispatching
from tests.unit.cli.conftest import Run

Captured = pytest.CaptureFixture[str]


class Slow(Service):
    """A service whose one tool takes ten seconds."""

    def __init__(self) -> None:
        super().__init__(lambda _arguments: asyncio.sleep(10, "done"))


def server(**options: Any) -> ToolServer:
    return ToolServer(Slow(), BROKER, request_queue=REQUESTS, response_queue=RESPONSES, instance="lab-1", **options)


def start(of: ToolServer, as_json: bool = False) -> asyncio.Task[signal.Signals]:
    return asyncio.create_task(serve.serve_until_signal([serve.ServerReporter(of, as_json)]))


async def test_sigterm_drains_what_runs_finishes_and_the_rest_is_refused(capsys: Captured) -> None:
    serving = start(server(concurrency=1))
    await idle()
    async with dispatching() as dispatcher:
        running = asyncio.create_task(dispatcher.execute("work"))
        await advance(0.1)  # a new instance gets its second request when it has acknowledged the first
        waiting = asyncio.create_task(dispatcher.execute("work", timeout=1))
        await idle()
        signal.raise_signal(signal.SIGTERM)
        await idle()
        refused = await waiting
        assert isinstance(refused.error, RejectedError)
        assert refused.error.type == "draining"
        assert (await running).text == "done"
        assert await serving is signal.SIGTERM
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert lines[0].startswith(f"lab-1 consumes {REQUESTS} and replies on {RESPONSES}.")
    assert lines[1:] == ["Draining: 1 running, 1 queued; at most 30 s.", "Drained. 2 requests received, 1 rejected."]


async def test_ctrl_c_drains_too_and_says_what_a_second_does(capsys: Captured) -> None:
    serving = start(server())
    await idle()
    signal.raise_signal(signal.SIGINT)
    assert await serving is signal.SIGINT
    assert "Draining: 0 running, 0 queued; at most 30 s. Ctrl-C again stops immediately." in capsys.readouterr().err


async def test_a_second_ctrl_c_stops_at_once_and_callers_are_told(capsys: Captured) -> None:
    serving = start(server())
    await idle()
    async with dispatching() as dispatcher:
        running = asyncio.create_task(dispatcher.execute("work"))
        await idle()
        began = asyncio.get_running_loop().time()
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)
            await idle()
        assert await serving is signal.SIGINT
        result = await running
        assert asyncio.get_running_loop().time() == pytest.approx(began + LINGER_S)
        assert result.error.type == "cancelled"
    assert "Stopped immediately: 1 request cancelled." in capsys.readouterr().err


async def test_what_has_not_finished_in_time_is_cut_off(capsys: Captured) -> None:
    serving = start(server(drain_timeout=2.5))
    await idle()
    async with dispatching() as dispatcher:
        running = asyncio.create_task(dispatcher.execute("work"))
        await idle()
        signal.raise_signal(signal.SIGTERM)
        await advance(2.4)
        assert not serving.done()
        await advance(0.2)
        assert await serving is signal.SIGTERM
        assert (await running).error is not None
    assert "Not all requests were answered within 2.5 s; the rest was given up." in capsys.readouterr().err


async def test_a_third_ends_the_process_whatever_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[int] = []
    monkeypatch.setattr(serve.os, "_exit", ends.append)
    serving = start(server())
    await idle()
    for _ in range(3):
        signal.raise_signal(signal.SIGINT)
    await serving
    assert ends == [130]


async def test_json_has_a_line_for_each_event(capsys: Captured) -> None:
    serving = start(server(), as_json=True)
    await idle()
    signal.raise_signal(signal.SIGTERM)
    await serving
    out, err = capsys.readouterr()
    assert err == ""
    ready, draining, stopped = map(json.loads, out.splitlines())
    assert ready == {"event": "ready", "instance": "lab-1", "request_queue": REQUESTS, "response_queue": RESPONSES}
    assert (draining["event"], draining["running"]) == ("draining", 0)
    assert (stopped["event"], stopped["drained"], stopped["requests"]) == ("stopped", True, 0)


async def test_what_a_tool_prints_is_not_among_the_events_in_json(capsys: Captured) -> None:
    async def work(_arguments: Any) -> str:
        sys.stdout.write("working\n")
        return "done"

    lab = ToolServer(Service(work), BROKER, request_queue=REQUESTS, response_queue=RESPONSES)
    serving = start(lab, as_json=True)
    await idle()
    async with dispatching() as dispatcher:
        assert await dispatcher.call("work") == "done"
        signal.raise_signal(signal.SIGTERM)
        await serving
    sys.stdout.write("printed afterwards\n")
    out, err = capsys.readouterr()
    *events, last = out.splitlines()
    assert [json.loads(each)["event"] for each in events] == ["ready", "draining", "stopped"]
    assert last == "printed afterwards"
    assert err == "working\n"


async def test_the_handlers_of_signals_are_as_before() -> None:
    before = signal.getsignal(signal.SIGTERM)
    serving = start(server())
    await idle()
    assert signal.getsignal(signal.SIGTERM) is not before
    signal.raise_signal(signal.SIGTERM)
    await serving
    assert signal.getsignal(signal.SIGTERM) == before
    assert signal.getsignal(signal.SIGINT) == signal.default_int_handler


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("jokes:Joke",), "The module 'jokes' does not exist"),
        (("jokes:Joke", "--request-queue", "non-persistent://tg/request/joke"), "use --service joke, or full names"),
        (("jokes:Joke", "--service", "a b"), "write a name without blanks"),
        (("jokes:Joke", "--request-queue", "jokes", "--response-queue", "x"), "'jokes' is no whole topic name"),
        (("jokes:Joke", "--service", "joke", "--concurrency", "0"), "--concurrency"),
        (("jokes:Joke", "--service", "joke", "--max-payload-bytes", "0"), "--max-payload-bytes"),
        (("jokes:Joke", "--service", "joke", "--drain-timeout", "inf"), "is not a number of seconds"),
        (("jokes:Joke", "--service", "joke"), "The module 'jokes' does not exist"),
    ],
    ids=lambda value: " ".join(value[1:]) if isinstance(value, tuple) else None,
)
def test_what_cannot_be_served_is_told_before_anything_connects(
    run: Run, arguments: tuple[str, ...], problem: str
) -> None:
    assert problem in run.refused("serve", *arguments)


def test_every_limit_reaches_the_server(run: Run, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lone.py").write_text("class Lone:\n    async def invoke(self, config, arguments): ...\n")
    made: dict[str, Any] = {}

    def make(*_arguments: Any, **options: Any) -> ToolServer:
        made.update(options)
        raise ValueError("enough")

    monkeypatch.setattr("dispatch.cli.serve.ToolServer", make)
    limits = {"concurrency": 3, "max_queue": 4, "max_payload_bytes": 5, "drain_timeout": 6.0, "instance": "one"}
    asked = [word for name, value in limits.items() for word in (f"--{name.replace('_', '-')}", f"{value}")]
    end = run("serve", "lone.py:Lone", "--service", "joke", "--broker", "pulsar://127.0.0.1:1", *asked)
    assert "enough" in end.err
    assert {name: made[name] for name in limits} == limits


def test_no_broker(run: Run, tmp_path: Any) -> None:
    (tmp_path / "lone.py").write_text("class Lone:\n    async def invoke(self, config, arguments): ...\n")
    err = run.refused("serve", "lone.py:Lone", "--service", "joke", "--broker", "pulsar://127.0.0.1:1", code=4)
    assert "no Pulsar broker replies at pulsar://127.0.0.1:1" in err
