"""The agent: a scripted model in both forms, and models behind the APIs of OpenAI and Anthropic."""

from __future__ import annotations

import contextlib
import html
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from dashboards.agent_picture import PICTURE, draw
from tests.examples.conftest import Run
from tests.helpers.python_processes import finish

STEPS = ["?", "->", "<-", "?", "->", "<-", "?", "->", "<-", "?", "->", "<-", "?", "->", "<-", "="]
TRANSITION = "circuit of 'exchange-rate': closed to open (consecutive-failures)"


def read_calls(lines: list[str]) -> list[str]:
    return [line.split()[1] for line in lines if line.startswith("-> ")]


@pytest.mark.process  # the agent's MCP server
@pytest.mark.parametrize("form", ["text", "native"])
def test_it_passes_an_open_circuit_and_calls_all_kinds_of_tools(
    form: str, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    code, out, err = run("agent.py", "--form", form)
    assert (code, err, caplog.messages) == (0, "", [TRANSITION])
    lines = out.splitlines()
    assert [line.split()[0] for line in lines] == STEPS
    assert read_calls(lines) == ["exchange-rate", "exchange-rate", "last-known-rate", "calculate", "convert_miles"]
    answers = [line.removeprefix("<- ") for line in lines if line.startswith("<- ")]
    assert [json.loads(each)["error"] for each in answers[:2]] == ["timeout", "circuit-open"]
    assert answers[2:] == ["0.92", "21.896", "42.2 km"]
    assert lines[-1] == "=  20 dollars are 21.896 euros with tax, and 26.2 miles are 42.2 km."
    shown = html.unescape(" ".join(re.findall(r">([^<]+)</text>", PICTURE.read_text("utf-8")))).replace("\u00a0", " ")
    assert all(name in shown for name in read_calls(lines)), "draw it again: python -m dashboards.agent_picture"
    assert lines[-1].split("and ")[1] in " ".join(shown.split())


@pytest.mark.pulsar
def test_on_pulsar_it_does_the_same(pulsar_endpoint: Any) -> None:
    ended = finish("examples/agent.py", "--broker", str(pulsar_endpoint.service_url))
    assert (ended.returncode, ended.stderr) == (0, f"{TRANSITION}\n")
    assert [line.split()[0] for line in ended.stdout.splitlines()] == STEPS


def test_the_picture_loads_nothing() -> None:
    drawn = draw(["?  a tool", "-> call {}", '<- {"error":"timeout"}', "=  done"])
    assert "url(http" not in drawn
    assert drawn.count("http") == 1, "the namespace of SVG"


class Api(BaseHTTPRequestHandler):
    """An API that calls ``calculate`` once."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert any("calculate" in json.dumps(tool) for tool in body["tools"])
        answer = json.dumps(self._answer(body["messages"])).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def _answer(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        is_first = len(messages) == 1
        if self.path.endswith("/chat/completions"):
            assert self.headers["Authorization"] == "Bearer key"
            function = {"name": "calculate", "arguments": '{"expression": "6 * 7"}'}
            call = {"id": "c1", "type": "function", "function": function}
            last = messages[-1].get("content")
            message: dict[str, Any] = {"role": "assistant", "content": f"It is {last}."}
            if is_first:
                message = {"role": "assistant", "content": None, "tool_calls": [call]}
            return {"choices": [{"message": message}]}
        assert self.headers["x-api-key"] == "key"
        if is_first:
            return {
                "content": [{"type": "tool_use", "id": "c1", "name": "calculate", "input": {"expression": "6 * 7"}}]
            }
        return {"content": [{"type": "text", "text": f"It is {messages[-1]['content'][0]['content']}."}]}

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing."""


@pytest.fixture
def api() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Api) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        with contextlib.ExitStack() as stack:
            stack.callback(thread.join)
            stack.callback(server.shutdown)
            yield f"http://127.0.0.1:{server.server_port}"


@pytest.mark.process  # as above
@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_a_model_behind_an_api(provider: str, api: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"{provider.upper()}_BASE_URL", api)
    monkeypatch.setenv(f"{provider.upper()}_API_KEY", "key")
    code, out, err = run("agent.py", "--model", f"{provider}:small")
    assert (code, err) == (0, "")
    assert out.splitlines() == ['-> calculate {"expression": "6 * 7"}', "<- 42", "=  It is 42."]


@pytest.mark.parametrize(
    ("model", "problem"),
    [("openai:small", "OPENAI_API_KEY is not set"), ("small", "unknown model 'small'; write openai:MODEL")],
)
def test_a_model_that_cannot_be_used(model: str, problem: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert str(run("agent.py", "--model", model)[0]).startswith(f"error: {problem}")
