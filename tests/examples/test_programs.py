"""The examples as a newcomer runs them: programs of their own, on a genuine broker."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import Any

import pytest

import dispatch
from tests.examples.conftest import EXAMPLES, TOOLS, Run
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
    """By Ctrl-C: each program has its own end for it. SIGTERM is the server's, in all of them."""
    how, code = (signal.SIGTERM, 0) if name == "joke_service" else (signal.SIGINT, 130)
    with example(name, url) as program:
        assert (await call(url, name)).startswith(SERVICES[name][4])
        assert program.end(how) == code
        assert "Traceback" not in program.text()


@pytest.mark.pulsar
async def test_the_command_line_serves_the_same_file(url: str) -> None:
    cls, topic, _, _, answer = SERVICES["story_service"]
    target = f"examples/story_service.py:{cls}"
    with running("-m", "dispatch", "serve", target, "--service", topic, "--broker", url, ready=READY) as program:
        assert (await call(url, "story_service")).startswith(answer)
        assert program.end(signal.SIGTERM) == 0


def test_without_a_broker_a_service_says_what_to_do(name: str, run: Run) -> None:
    error, out, err = run(f"{name}.py", "--broker", NOBODY)
    assert str(error).startswith(f"error: No tool was executed: no Pulsar broker replies at {NOBODY}")
    assert (str(error).count("\n"), out, err) == (0, "", "")


@pytest.mark.parametrize(
    ("program", "last"),
    [("agent_loop.py", "All 5 tasks are done.\n"), ("function_calls.py", "I have not removed it.\n")],
)
def test_an_agent_needs_no_broker(program: str, last: str, run: Run) -> None:
    code, out, err = run(program)
    assert (code, err) == (0, "")
    assert out.endswith(last)


@pytest.mark.pulsar
def test_the_agent_loop_with_services_elsewhere(url: str, run: Run) -> None:
    here = run("agent_loop.py")
    with contextlib.ExitStack() as stack:
        for name in ("joke_service", "calculator_service", "custom_rag_service"):
            stack.enter_context(example(name, url))
        assert run("agent_loop.py", "--broker", url) == here


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
def test_help_teaches(program: str, run: Run) -> None:
    code, out, err = run(program, "--help")
    assert (code, err) == (0, "")
    explanation = (EXAMPLES / program).read_text(encoding="utf-8").split('"""')[1].split()
    assert " ".join(explanation[:30]) in " ".join(out.split()), "the module's docstring"
    assert f"examples/{program}" in out
    assert "--broker" in out


def test_every_example_is_known_to_these_tests() -> None:
    others = {"agent", "agent_loop", "function_calls", "trustgraph_agent", "trustgraph_service"}
    assert set(PROGRAMS) == {f"{name}.py" for name in set(SERVICES) | others}
