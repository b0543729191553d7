"""The examples as a newcomer runs them: programs of their own, on a genuine broker."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import Any

import pytest

import dispatch
from tests.examples.conftest import EXAMPLES, TOOLS
from tests.helpers.python_processes import Running, finish, running

SERVICES: dict[str, tuple[str, str, str, dict[str, Any], str]] = {
    # file: class, topic, tool, arguments, the beginning of the answer
    "joke_service": ("Joke", "joke", "tell-joke", {"topic": "cats"}, "Hello alice! The cat joined"),
    "calculator_service": ("Calculator", "calculator", "calculate", {"expression": "6 * 7"}, "42"),
    "custom_rag_service": (
        "CustomRag",
        "custom-rag",
        "query-products",
        {"question": "Which kettle is the quickest?"},
        '{"collection": "products", "passages": ["The copper kettle',
    ),
    "story_service": ("Story", "story", "tell-story", {"subject": "a goat", "words": 8}, "Once upon a time there"),
}
PROGRAMS = sorted(path.name for path in EXAMPLES.glob("*.py") if not path.name.startswith("test_"))
"""The one that is a test is run as one (tests/unit/testing/test_plugin.py)."""
NOBODY = "pulsar://127.0.0.1:1"
READY = "non-persistent://tg/request/"


@pytest.fixture(scope="session")
def url(pulsar_endpoint: Any) -> str:
    return str(pulsar_endpoint.service_url)


@pytest.fixture(params=list(SERVICES))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@contextlib.contextmanager
def example(name: str, url: str) -> Iterator[Running]:
    with running(f"examples/{name}.py", "--broker", url, ready=READY) as program:
        yield program


async def call(url: str, name: str) -> str:
    _, _, tool, arguments, _ = SERVICES[name]
    async with dispatch.connect(url, catalog=TOOLS) as dispatcher:
        return await dispatcher.call(tool, arguments, user="alice", timeout=20)


@pytest.mark.pulsar
async def test_a_service_serves_and_ends_when_it_is_told_to(name: str, url: str) -> None:
    with example(name, url) as program:
        assert (await call(url, name)).startswith(SERVICES[name][4])
        assert program.end(signal.SIGTERM) == 0
        assert "Traceback" not in program.text()


@pytest.mark.pulsar
def test_ctrl_c_ends_a_service_quietly(name: str, url: str) -> None:
    with example(name, url) as program:
        assert program.end(signal.SIGINT) == 130
        assert "Traceback" not in program.text()


@pytest.mark.pulsar
async def test_the_command_line_serves_the_same_file(name: str, url: str) -> None:
    cls, topic, _, _, answer = SERVICES[name]
    target = f"examples/{name}.py:{cls}"
    with running("-m", "dispatch", "serve", target, "--service", topic, "--broker", url, ready=READY) as program:
        assert (await call(url, name)).startswith(answer)
        assert program.end(signal.SIGTERM) == 0


def test_without_a_broker_a_service_says_what_to_do(name: str) -> None:
    ended = finish(f"examples/{name}.py", "--broker", NOBODY)
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"error: No tool was executed: no Pulsar broker replies at {NOBODY}")
    assert ended.stderr.count("\n") == 1


def test_the_agent_loop_needs_no_broker() -> None:
    ended = finish("examples/agent_loop.py")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.endswith("All 5 tasks are done.\n")


def test_function_calls_need_no_broker() -> None:
    ended = finish("examples/function_calls.py")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.endswith("I have not removed it.\n")


@pytest.mark.pulsar
def test_the_agent_loop_with_services_elsewhere(url: str) -> None:
    here = finish("examples/agent_loop.py")
    with contextlib.ExitStack() as stack:
        for name in ("joke_service", "calculator_service", "custom_rag_service"):
            stack.enter_context(example(name, url))
        there = finish("examples/agent_loop.py", "--broker", url)
    assert (there.returncode, there.stdout, there.stderr) == (0, here.stdout, "")


@pytest.mark.pulsar
def test_an_agent_of_trustgraphs_with_a_service_of_ours(url: str) -> None:
    with example("joke_service", url):
        ended = finish("examples/trustgraph_agent.py", "--broker", url)
    joke = "The cat joined the Red Cross: it wanted to be a first-aid kit."
    mistake = 'Pass the topic of the joke: {"topic": "cats"}.'
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.splitlines() == [
        f"ToolServiceClient of dispatch: {joke}",
        f"   with a user, as in the specification: Hello alice! {joke}",
        f"   an error: missing-topic: {mistake}",
        f"wrapped client of TrustGraph: {joke}",
        f"   an error: tool-error: {mistake}",
    ]


@pytest.mark.pulsar
async def test_a_service_of_trustgraphs_with_an_agent_of_trustgraphs_and_with_ours(url: str) -> None:
    told = "A pun about cats, told by a service of TrustGraph."
    options = ("--broker", url, "--log-level", "INFO")
    with running("examples/trustgraph_service.py", *options, ready="Tool service joke-service started"):
        assert await call(url, "joke_service") == told
        ended = finish("examples/trustgraph_agent.py", "--broker", url)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.splitlines() == [
        f"ToolServiceClient of dispatch: {told}",
        f"   with a user, as in the specification: {told}",
        "   an error: tool-service-error: 'topic'",
        f"wrapped client of TrustGraph: {told}",
        "   an error: tool-error: 'topic'",
    ]


@pytest.mark.parametrize("program", PROGRAMS)
def test_help_teaches(program: str) -> None:
    ended = finish(f"examples/{program}", "--help")
    assert (ended.returncode, ended.stderr) == (0, "")
    explanation = (EXAMPLES / program).read_text(encoding="utf-8").split('"""')[1].split()
    assert " ".join(explanation[:30]) in " ".join(ended.stdout.split()), "the module's docstring"
    assert f"examples/{program}" in ended.stdout
    assert "--broker" in ended.stdout


def test_every_example_is_known_to_these_tests() -> None:
    others = {"agent", "agent_loop", "function_calls", "trustgraph_agent", "trustgraph_service"}
    assert set(PROGRAMS) == {f"{name}.py" for name in set(SERVICES) | others}
