"""``serve``, ``call`` and ``demo`` as a user's own processes, on a genuine broker."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.cli_processes import Program, ended, started
from tests.unit.cli.conftest import write_catalog

pytestmark = pytest.mark.pulsar

SERVICES = """
import asyncio, contextlib, time
import dispatch

class Joke(dispatch.ToolService):
    async def invoke(self, config, arguments, user=""):
        if arguments.get("topic") == "taxes":
            raise dispatch.ToolError("no-joke", "Nothing is funny about taxes.")
        return f"{user}: a {config['style']} about {arguments['topic']!r}"

class Story(dispatch.ToolService):
    async def invoke(self, config, arguments, user=""):
        for word in ("once ", "upon ", "a ", "time"):
            yield word

class Blocking(dispatch.ToolService):
    # Runs in a thread; it opens and reads the pipe that the test holds the other end of.
    def invoke(self, config, arguments):
        with open(arguments["topic"]) as pipe:
            return pipe.read()

class Endless(dispatch.ToolService):
    async def invoke(self, config, arguments):
        with open(arguments["topic"]):  # tells the test that it runs
            pass
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)

class BlockingTheLoop(dispatch.ToolService):
    async def invoke(self, config, arguments):
        with open(arguments["topic"]):
            time.sleep(3600)
"""


class Stand:
    """A module of services, and a catalogue whose tool is on a topic that nobody else uses."""

    def __init__(self, folder: Path, url: str) -> None:
        self.topic = f"cli-{secrets.token_hex(6)}"
        self.catalog = write_catalog(folder / "catalogue", topic=self.topic)
        self.module = folder / "services.py"
        self.module.write_text(SERVICES)
        self.folder = folder
        self.url = url

    def make_pipe(self) -> Path:
        """A pipe for one call: opening it for writing waits until that call's tool reads it."""
        pipe = self.folder / secrets.token_hex(6)
        os.mkfifo(pipe)
        return pipe

    @contextlib.contextmanager
    def serving(self, name: str, *options: str) -> Iterator[Program]:
        """``dispatch serve``, ready."""
        target = f"{self.module}:{name}"
        with started("serve", target, "--service", self.topic, "--broker", self.url, *options) as program:
            (program.out if "--json" in options else program.err).wait_for(
                "ready" if "--json" in options else "Ctrl-C drains"
            )
            yield program

    def options(self, *arguments: str) -> tuple[str, ...]:
        return ("call", "tell-joke", *arguments, "--catalog", str(self.catalog), "--broker", self.url)

    def call(self, *arguments: str) -> tuple[int, str, str]:
        """``dispatch call``, to its end."""
        return ended(*self.options(*arguments))

    @contextlib.contextmanager
    def blocked_call(self) -> Iterator[tuple[Program, Any]]:
        """A call whose tool runs, and waits for the pipe's end."""
        path = self.make_pipe()
        with started(*self.options(f"topic={path}")) as caller, path.open("w") as pipe:
            yield caller, pipe


@pytest.fixture
def stand(tmp_path: Path, pulsar_endpoint: Any) -> Stand:
    return Stand(tmp_path, pulsar_endpoint.service_url)


def test_a_call_travels_and_each_end_has_its_exit_code(stand: Stand) -> None:
    with stand.serving("Joke", "--instance", "joke-1") as service:
        assert stand.call("topic=grüße 猫", "--user", "alice") == (0, "alice: a pun about 'grüße 猫'\n", "")
        code, out, err = stand.call("topic:=[1, null]", "--json")
        result = json.loads(out)
        assert (code, err, result["outcome"], result["instance"]) == (0, "", "success", "joke-1")
        assert result["text"] == ": a pun about [1, None]"
        assert stand.call("topic=taxes") == (
            1,
            "",
            "Error: Nothing is funny about taxes.\n  outcome tool_error · type no-joke\n",
        )
        service.terminate()
        assert service.wait() == 0
        assert "Drained. 3 requests received, 0 rejected." in service.err.text()
    code, out, err = stand.call("topic=cats", "--timeout", "0.5")
    assert (code, out) == (5, "")
    assert f"that a service consumes non-persistent://tg/request/{stand.topic}" in err


def test_a_stream_arrives_in_chunks(stand: Stand) -> None:
    with stand.serving("Story"):
        assert stand.call("topic=goats", "--stream") == (0, "once upon a time\n", "")
        code, out, _ = stand.call("topic=goats", "--stream", "--json")
        lines = [json.loads(line) for line in out.splitlines()]
        assert code == 0
        assert [line["chunk"] for line in lines[:-1]] == ["once ", "upon ", "a ", "time"]
        assert lines[-1]["result"]["text"] == "once upon a time"


def test_ctrl_c_lets_a_call_that_runs_finish(stand: Stand) -> None:
    with stand.serving("Blocking") as service, stand.blocked_call() as (caller, pipe):
        service.interrupt()
        service.err.wait_for("Draining: 1 running, 0 queued; at most 30 s. Ctrl-C again stops immediately.")
        pipe.write("finished")
        pipe.close()
        assert (caller.wait(), caller.out.text()) == (0, "finished\n")
        service.assert_interrupted()
        assert "Drained. 1 request received, 0 rejected." in service.err.text()


def test_a_second_ctrl_c_ends_it_even_while_a_tool_blocks_its_thread(stand: Stand) -> None:
    with stand.serving("Blocking") as service, stand.blocked_call() as (caller, _pipe):
        service.interrupt()
        service.err.wait_for("Draining: 1 running")
        service.interrupt()
        service.assert_interrupted()
        assert "Stopped immediately: 1 request cancelled." in service.err.text()
        assert caller.wait() == 1
        assert "type cancelled" in caller.err.text()


def test_a_drain_that_takes_too_long_ends_all_the_same(stand: Stand) -> None:
    with (
        stand.serving("Blocking", "--drain-timeout", "0.1", "--json") as service,
        stand.blocked_call() as (caller, _pipe),
    ):
        service.terminate()
        assert service.wait() == 0
        assert [json.loads(line)["event"] for line in service.out.text().splitlines()] == [
            "ready",
            "draining",
            "stopped",
        ]
        assert json.loads(service.out.text().splitlines()[-1])["drained"] is False
        assert caller.wait() == 1


def test_a_tool_that_ignores_its_cancellation_does_not_keep_a_stopping_service_alive(stand: Stand) -> None:
    with stand.serving("Endless", "--drain-timeout", "0.1") as service, stand.blocked_call() as (caller, _pipe):
        service.terminate()
        assert service.wait() == 0
        assert "that ignore their cancellation, and still run: 1. They are left alone" in service.err.text()
        assert caller.wait() == 1
        assert "type cancelled" in caller.err.text()


def test_ctrl_c_several_times_ends_it_even_while_a_tool_blocks_the_event_loop(stand: Stand) -> None:
    with stand.serving("BlockingTheLoop") as service, stand.blocked_call():
        until = time.monotonic() + 30
        while service.process.poll() is None and time.monotonic() < until:
            service.interrupt()
            time.sleep(0.1)  # signals that are pending at once are one
        service.assert_interrupted()


def test_ctrl_c_in_a_call_that_waits_for_its_answer(stand: Stand) -> None:
    with stand.serving("Blocking"):
        for more in ((), ("--stream", "--json")):
            pipe = stand.make_pipe()
            with started(*stand.options(f"topic={pipe}", *more)) as caller, pipe.open("w"):
                caller.interrupt()
                caller.assert_interrupted()
                assert caller.out.text() == ""


def test_a_call_without_a_service_says_until_when_it_waits(stand: Stand) -> None:
    for more in ((), ("--stream",)):
        with started(*stand.options("topic=cats", *more)) as caller:
            caller.err.wait_for("(30 s in all). Ctrl-C ends the call")
            caller.err.wait_for(f"no instance has announced itself on non-persistent://tg/request/{stand.topic}")
            caller.interrupt()
            caller.assert_interrupted()
            assert caller.out.text() == ""


@pytest.mark.soak
def test_the_demonstration_on_a_genuine_broker(pulsar_endpoint: Any) -> None:
    code, out, err = ended("demo", "--seconds", "6", "--json", "--broker", pulsar_endpoint.service_url, limit=90.0)
    summary = json.loads(out)
    assert (code, err, summary["deviations"], summary["pending"]) == (0, "", [], 0)
    assert summary["broker"] == pulsar_endpoint.service_url
    assert summary["outcomes"]["success"]["count"] > 10
    _, instance, circuit, user = summary["scenarios"]
    assert instance["instances"]["translate-2"] == ["up", "ejected", "warming", "up"]
    assert instance["succeeded"] == instance["calls"]
    assert circuit["states"] == ["closed", "open", "half-open", "closed"]
    assert user["users"]["noisy"]["rejected"] > 0 == user["users"]["nora"]["rejected"]
