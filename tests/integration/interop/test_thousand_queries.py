"""The main job: TrustGraph's published service, a process of its own, called with a thousand real queries."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

import dispatch
from tests.helpers.python_processes import finish
from tests.integration.interop.conftest import TheirService
from tests.integration.interop.peers import TIMEOUT_S, request_topic, response_topic
from tests.integration.interop.queries import COUNT, queries
from tests.integration.interop.tool_behaviour import answer

pytestmark = pytest.mark.pulsar

SALT = "metatool"
AT_ONCE = 16


@pytest.fixture(scope="module")
def tools(their_service: TheirService, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of descriptors as TrustGraph stores them, with the tool ``ask``."""
    folder = tmp_path_factory.mktemp("tools")
    items = {
        "tool-service/asker.json": {
            "id": "asker",
            "request-queue": request_topic(their_service.topic),
            "response-queue": response_topic(their_service.topic),
            "config-params": [{"name": "salt", "required": True}],
        },
        "tool/ask.json": {
            "type": "tool-service",
            "name": "ask",
            "description": "Answers any query.",
            "service": "asker",
            "salt": SALT,
            "arguments": [{"name": "query", "type": "string", "description": "The query"}],
        },
    }
    for name, item in items.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(item), encoding="utf-8")
    return folder


async def test_a_thousand_queries_a_thousand_right_answers(url: str, tools: Path) -> None:
    asked = queries()
    wrong: list[tuple[str, object]] = []
    free = asyncio.Semaphore(AT_ONCE)

    async with dispatch.connect(url, catalog=tools) as dispatcher:

        async def ask(query: str) -> None:
            async with free:
                result = await dispatcher.execute("ask", {"query": query}, user="alice", timeout=TIMEOUT_S)
            if result.text != answer(SALT, query):
                wrong.append((query, result))

        async with asyncio.TaskGroup() as group:
            for query in asked:
                group.create_task(ask(query))
        assert dispatcher.pending_requests == 0
        replies = {str(disposition): count for disposition, count in dispatcher.reply_counts().items() if count}
    assert (len(asked), wrong) == (COUNT, [])
    assert replies == {"matched": COUNT}


def test_a_query_through_the_command_line(url: str, tools: Path) -> None:
    query = queries()[0]  # the first ones are not plain ASCII
    at = ("--broker", url, "--catalog", str(tools))
    called = finish("-m", "dispatch", "call", "ask", f"query={query}", *at)
    assert (called.returncode, called.stdout, called.stderr) == (0, f"{answer(SALT, query)}\n", "")


def test_an_error_of_theirs_through_the_command_line(url: str, tools: Path) -> None:
    """``refuse`` is no argument that the descriptor knows: that is a warning, and the service's to judge."""
    at = ("--broker", url, "--catalog", str(tools))
    called = finish("-m", "dispatch", "call", "ask", "refuse=not today", "--json", *at)
    assert called.returncode != 0
    error = json.loads(called.stdout)["error"]
    assert (error["outcome"], error["type"], error["message"]) == ("tool_error", "tool-service-error", "not today")
