"""A value of another type, given to a public constructor or method: one error that says what to give."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dispatch
from dispatch import adapters
from dispatch.adapters import execute, specs
from dispatch.mcp import McpServer
from dispatch.relay import RelayConfig

TOPICS: dict[str, Any] = {f"{of}_queue": f"non-persistent://tg/{of}/lab" for of in ("request", "response")}


def echo(text: str = "") -> str:
    """Echo."""
    return text


class Joke(dispatch.ToolService):
    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any]) -> str:
        return ""


class OwnClient:
    async def call(self, config: object, arguments: object, timeout: float = 1) -> str:
        return "done"


def serve(**changes: Any) -> object:
    return dispatch.ToolServer(Joke(), "memory://arguments", **(TOPICS | changes))


def wrap(**changes: Any) -> object:
    return dispatch.wrap(OwnClient(), **({"tool": "work"} | changes))


def keyword(make: Callable[..., object], name: str) -> Callable[[Any], object]:
    """Make something with a value for one keyword."""
    return lambda value: make(**{name: value})


TEXT = "must be a text, not"
PATH = "must be a path, not"

MISTAKES: dict[str, tuple[Callable[[Any], object], Any, str]] = {
    "server-topic": (keyword(serve, "request_queue"), 3, f"request_queue {TEXT[:-5]}, or None, not an int"),
    "server-instance": (keyword(serve, "instance"), b"x", "instance must be a text, or None, not a bytes"),
    "server-namespaces": (keyword(serve, "reply_namespaces"), None, "reply_namespaces must be a list of texts"),
    "folder": (dispatch.Folder, None, f"path {PATH} None"),
    "functions-id": (lambda value: dispatch.Functions(echo, id=value), None, f"id {TEXT} None"),
    "package": (dispatch.ToolPackage, None, f"package {TEXT} None"),
    "mcp": (dispatch.McpServers, None, "servers must be a path, or the contents of the file, not None"),
    "announced": (keyword(dispatch.Announced, "trust"), 3, "trust must be a dispatch.Trust, or None, not an int"),
    "announce-topic": (keyword(dispatch.Announce, "topic"), 3, "topic must be the name of a topic, such as"),
    "announce-keys": (keyword(dispatch.Announce, "keys"), None, "keys must be secrets by their ids, such as"),
    "announce-labels": (
        keyword(dispatch.Announce, "labels"),
        {"zone": 3},
        "the label 'zone' must be a text, not an int",
    ),
    "announce-weight": (keyword(dispatch.Announce, "weight"), "2", "weight must be a number above 0, not a str"),
    "folder-watch": (lambda value: dispatch.Folder("x", watch=value), "no", "watch must be True or False, not a str"),
    "read-only": (keyword(dispatch.Annotations, "read_only"), "no", "read_only must be True or False, not a str"),
    "destructive": (
        keyword(dispatch.Annotations, "destructive"),
        "no",
        "destructive must be True, False, or None, not a str",
    ),
    "content": (keyword(dispatch.Telemetry, "content"), "false", "content must be True or False, not a str"),
    "trust": (keyword(dispatch.Trust, "services"), None, "services must be a tuple of patterns, such as"),
    "trust-number": (keyword(dispatch.Trust, "max_tools"), "3", "max_tools must be a whole number, not a str"),
    "trust-file": (dispatch.Trust.load, None, f"path {PATH} None"),
    "admin": (keyword(dispatch.Admin, "address"), None, "address must be HOST:PORT, such as"),
    "admin-hosts": (keyword(dispatch.Admin, "hosts"), [3], "each of hosts must be a text, not an int"),
    "admin-token": (keyword(dispatch.Admin, "read"), {"a": 1}, "each token must be a text, not an int"),
    "workspace": (dispatch.TrustGraphConfig, 3, f"workspace {TEXT} an int"),
    "config-topics": (keyword(dispatch.TrustGraphConfig, "topics"), 3, "topics must be a ConfigTopics, or None"),
    "annotations": (keyword(wrap, "annotations"), None, "annotations must be a dispatch.Annotations, not None"),
    "permissions": (keyword(wrap, "permissions"), [None], "each of permissions must be a text such as"),
    "grants": (dispatch.Grants.load, None, f"file {PATH} None"),
    "policy": (dispatch.Policy.load, None, f"file {PATH} None"),
    "relay": (RelayConfig.load, None, f"path {PATH} None"),
    "catalog": (lambda value: dispatch.Catalog.of(tools=value), None, "tools must be a list of descriptors, not None"),
    "error": (
        lambda value: dispatch.ToolError("a", "b", retry_after=value),
        "3",
        "retry_after must be a number of sec",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
async def test_a_constructor_says_what_to_give(name: str) -> None:
    make, value, message = MISTAKES[name]
    with pytest.raises(TypeError, match=f"^{message}"):
        make(value)


def connect() -> dispatch.Dispatcher:
    return dispatch.connect("memory://arguments", [dispatch.Functions(echo)])


@pytest.mark.parametrize(
    ("make", "entered"), [(connect, "dispatch.connect(…) as dispatcher"), (serve, "dispatch.ToolServer(…)")]
)
async def test_with_names_async_with(make: Callable[[], Any], entered: str) -> None:
    with pytest.raises(TypeError, match=re.escape(f"Fix: write 'async with {entered}:'")), make():
        pass
    assert not inspect.isawaitable(make()), "frameworks await what can be awaited"


async def test_an_adapter_is_given_the_dispatcher_and_not_its_tools() -> None:
    async with connect() as dispatcher:
        tools: Any = await dispatcher.tools()
        call = {"name": "echo", "arguments": {}}
        for use in (specs(tools, style="mcp"), execute(tools, call, style="mcp")):
            with pytest.raises(TypeError, match=r"^dispatcher must be a dispatcher, .* not a tuple\.$"):
                await use
        with pytest.raises(TypeError, match="'serch': did you mean 'search'"):
            dispatcher.mcp_server(serch="never")
    assert {"langchain", "specs"} <= {*dir(adapters)}  # of which Python's error for another name has the nearest


@pytest.mark.parametrize("raw", [None, 3, "echo", [("name", "echo")], echo])
async def test_a_descriptor_that_is_no_object(raw: Any) -> None:
    async with connect() as dispatcher:
        with pytest.raises(TypeError, match=r"^raw must be a descriptor, such as \{'name': 'tell-joke'\}, not "):
            await dispatcher.registry.put("tool", raw)


@pytest.mark.parametrize("limit", [None, 3.5, "3", [1]])
async def test_a_limit_that_is_no_number(limit: Any) -> None:
    async with connect() as dispatcher:
        with pytest.raises(TypeError, match=r"^limit must be a whole number, not "):
            await dispatcher.find("echo", limit)


async def test_what_takes_texts_takes_one_or_several_but_nothing_else() -> None:
    async with connect() as dispatcher:
        uses: list[Callable[[Any], object]] = [
            lambda tags: dispatcher.catalog.list(tags_any=tags),
            lambda names: McpServer(dispatcher, always=names),
        ]
        for use in uses:
            for value in ("echo", ["echo"], (), {"echo"}):
                use(value)
            for wrong in (3, None, [3]):
                with pytest.raises(TypeError, match=r"must be a (list of )?text"):
                    use(wrong)
        with pytest.raises(
            TypeError, match=r"^user must be the name of a user, or a function of the request, not an int"
        ):
            McpServer(dispatcher, user=3)  # type: ignore[arg-type]


async def test_a_function_that_nothing_would_await() -> None:
    async def answer(*_: object) -> str:
        return ""

    class Listener:
        async def __call__(self, value: object) -> None: ...

    async with connect() as dispatcher:
        for subscribe in (dispatcher.on_event, dispatcher.on_call):
            for listener in (Listener(), Listener().__call__):
                with pytest.raises(TypeError, match=r"must be a plain function, .* asyncio\.create_task"):
                    subscribe(listener)
        makes: list[Callable[[Any], object]] = [
            lambda function: McpServer(dispatcher, user=function),
            lambda function: dispatch.Telemetry(redact=function),
            lambda function: dispatch.Security(token=function),
        ]
        for make in makes:
            with pytest.raises(TypeError, match="must be a plain function, not a coroutine function"):
                make(answer)


@pytest.mark.parametrize("path", ["tools\ud83d", "tools\0"])
async def test_a_text_that_can_be_no_path(path: str, tmp_path: Path) -> None:
    with pytest.raises(dispatch.CatalogError, match="there is no such folder"):
        dispatch.connect("memory://arguments", catalog=path)
    for load in (dispatch.Grants.load, dispatch.Policy.load, dispatch.McpServers, RelayConfig.load):
        with pytest.raises(ValueError, match="this cannot be the name of a file"):
            load(str(tmp_path / path))
