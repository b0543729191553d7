"""A client of admin endpoints, and the options of the commands that read them."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import urlsplit

import typer

from dispatch._internal import excerpt
from dispatch.announcements.messages import Question
from dispatch.cli.base import CliError, Settings
from dispatch.cli.screen import Row, merge
from dispatch.cli.wire import DEFAULT_WAIT_S, collect, connect_broker
from dispatch.messaging.wire import TopicName

T = TypeVar("T")
TIMEOUT_S: Final = 3.0
"""Seconds for one answer."""
SILENCE_S: Final = 40.0
"""Seconds without any line of a stream, which has a comment every 15 s."""
FORGET_S: Final = 60.0
"""Seconds that a silent process is shown which no other one names any more."""
MAX_BYTES: Final = 64 * 1024 * 1024


class AdminError(Exception):
    """An admin endpoint that gives no answer, or refuses the request; ``str()`` says why and what to do.

    Attributes:
        status: of the answer; 0: there is none.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class AdminEndpoint:
    """The admin endpoint of one process.

    Args:
        url: ``http://HOST:PORT``, ``HOST:PORT`` or ``PORT``.
        token: of the operator; empty: none.
        name: of the process, until it answers.
    """

    def __init__(self, url: str, token: str = "", name: str = "") -> None:
        text = f"127.0.0.1:{url}" if url.isdecimal() else url
        parts = urlsplit(text if "://" in text else f"http://{text}")
        try:
            port = parts.port
        except ValueError:
            port = None
        if parts.scheme not in ("http", "https") or not parts.hostname or port is None:
            raise CliError(
                f"'{excerpt(url)}' is no address of an admin endpoint.", "write it as HOST:PORT or http://HOST:PORT"
            )
        if not token.isascii() or not token.isprintable():
            raise CliError("The token has characters that no token has.", "change --token or DISPATCH_ADMIN_TOKEN")
        self._connection = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._host, self._port = parts.hostname, port
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        self.url = f"{parts.scheme}://{host}:{port}"
        self.name = name or self.url

    async def get(self, path: str) -> Any:
        """Return the JSON value at ``path``.

        Raises:
            AdminError: there is none.
        """
        return await _in_thread(lambda: self._request("GET", path, None))

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Send an action and return its answer.

        Raises:
            AdminError: it was refused.
        """
        return await _in_thread(lambda: self._request("POST", path, json.dumps(body).encode()))

    async def follow(self, path: str) -> AsyncGenerator[Any, None]:
        """Yield None when the stream is open, then the value of each server-sent event.

        Raises:
            AdminError: the stream is refused, or has ended.
        """
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[Any] = asyncio.Queue()
        connection = self._connection(self._host, self._port, timeout=SILENCE_S)

        def put(value: Any) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(queue.put_nowait, value)

        def read() -> None:
            try:
                response = self._send(connection, "GET", path, None)
                if response.status != 200:
                    raise self._refusal("GET", path, response.status, response.read(MAX_BYTES))
                put(None)
                while line := response.readline(MAX_BYTES):
                    if line.startswith(b"data:"):
                        put(json.loads(line[5:]))
                put(AdminError(f"{self.url} has ended the stream"))
            except AdminError as error:
                put(error)
            except (OSError, ValueError, AttributeError, http.client.HTTPException) as error:
                # AttributeError: of a connection that is closed while it is read
                put(self._silence(error))

        threading.Thread(target=read, daemon=True).start()
        try:
            while True:
                value = await queue.get()
                if isinstance(value, AdminError):
                    raise value
                yield value
        finally:
            connection.close()

    def _request(self, method: str, path: str, body: bytes | None) -> Any:
        connection = self._connection(self._host, self._port, timeout=TIMEOUT_S)
        try:
            response = self._send(connection, method, path, body)
            content = response.read(MAX_BYTES + 1)
        except (OSError, http.client.HTTPException) as error:
            raise self._silence(error) from None
        finally:
            connection.close()
        if response.status < 400 and len(content) <= MAX_BYTES:
            with contextlib.suppress(ValueError):
                return json.loads(content)
        raise self._refusal(method, path, response.status, content)

    def _send(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None
    ) -> http.client.HTTPResponse:
        # No proxy and no redirection: the token is for this address alone.
        headers = self._headers | ({} if body is None else {"Content-Type": "application/json"})
        connection.request(method, path, body, headers)
        return connection.getresponse()

    def _silence(self, error: Exception) -> AdminError:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
        return AdminError(f"{self.url} does not answer: {reason}")

    def _refusal(self, method: str, path: str, status: int, content: bytes) -> AdminError:
        fix = " Fix: give --token, and this URL: peers that were found get no token." if status == 401 else ""
        return AdminError(f"{self.url} answers {status} to {method} {path}: {_reason(content)}.{fix}", status)


def _reason(content: bytes) -> str:
    try:
        value = json.loads(content)
        text = str(value.get("error", value)) if isinstance(value, dict) else str(value)
    except ValueError:
        text = content.decode(errors="replace")
    return excerpt(" ".join(text.split()), 200).rstrip(".") or "no reason given"


async def _in_thread(function: Callable[[], T]) -> T:
    """Run ``function`` in a daemon thread: a process that does not answer delays neither the others nor the end of the
    command."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: Exception | None) -> None:
        if not future.done():
            if error is None:
                future.set_result(result)  # type: ignore[arg-type] # a result, or an error
            else:
                future.set_exception(error)

    def run() -> None:
        result, failure = None, None
        try:
            result = function()
        except Exception as error:
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=run, daemon=True).start()
    return await future


# The processes that a command reads.

Urls = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="URL",
        envvar="DISPATCH_ADMIN_URLS",
        help="Admin endpoints: HOST:PORT, http://HOST:PORT, or the port on this machine. Default: those that announce "
        "themselves on the broker.",
        show_default=False,
    ),
]
Token = Annotated[
    str,
    typer.Option(
        "--token",
        metavar="TOKEN",
        envvar="DISPATCH_ADMIN_TOKEN",
        help="Token of the admin endpoints. Announced endpoints get it only if their announcement is signed with a key of "
        "--trust.",
        show_default=False,
    ),
]


class Fleet:
    """The admin endpoints of several processes.

    Args:
        endpoints: of the processes.

    Attributes:
        endpoints: by their URL.
    """

    def __init__(self, endpoints: Iterable[AdminEndpoint]) -> None:
        self.endpoints = {each.url: each for each in endpoints}
        self._known: dict[str, Row] = {}
        self._peers: set[str] = set()
        self._silent_since: dict[str, float] = {}

    async def fetch(self, tables: Mapping[str, str]) -> dict[str, list[Row]]:
        """Return the merged rows of ``tables`` (their paths by their names), and of ``processes``."""
        found = await asyncio.gather(*(self._fetch(each, tables) for each in self.endpoints.values()))
        # A process may be given by several names of its host.
        once = {
            tuple(process.get(key, process["url"]) for key in _IDENTITY): (process, rows) for process, rows in found
        }
        found = list(once.values())
        return {
            "processes": [process for process, _ in found],
            **{name: merge(name, chain.from_iterable(rows[name] for _, rows in found)) for name in tables},
        }

    async def _fetch(self, endpoint: AdminEndpoint, tables: Mapping[str, str]) -> tuple[Row, dict[str, list[Row]]]:
        url = endpoint.url
        rows: dict[str, list[Row]] = {name: [] for name in tables}
        try:
            process = {**await endpoint.get("/api/process"), "url": url}
            names = [name for name in tables if process["kind"] != "service" or name in OF_SERVICES]
            answers = await asyncio.gather(*(endpoint.get(tables[name]) for name in names))
        except AdminError as error:
            known = self._known.get(url, {"name": endpoint.name, "kind": "process", "url": url})
            self._silent_since.setdefault(url, time.monotonic())
            return {**known, "rate": None, "in_flight": None, "state": "unreachable", "problem": str(error)}, rows
        for name, found in zip(names, answers, strict=True):
            rows[name] = [{**row, "url": url, "process": process["name"]} for row in found]
        self._known[url] = process
        self._silent_since.pop(url, None)
        problem = ", ".join(process.get("reasons", ()))
        return {**process, "state": "not ready" if problem else "ready", "problem": problem}, rows

    async def find_peers(self) -> None:
        """Add the peers that the processes name, and forget those that are no longer named and are silent."""
        named = {}
        with contextlib.suppress(AdminError):
            for peer in chain.from_iterable([peers for _, peers in await self.ask_each("/api/peers")]):
                with contextlib.suppress(CliError):
                    # A peer is a claim of another process: it does not get the token.
                    endpoint = AdminEndpoint(peer["url"], name=peer["name"])
                    named[endpoint.url] = endpoint
        until = time.monotonic() - FORGET_S
        for url in self._peers - named.keys():
            if self._silent_since.get(url, until) < until:
                del self.endpoints[url]
        self._peers |= named.keys() - self.endpoints.keys()
        self._peers &= self.endpoints.keys() | named.keys()
        self.endpoints = {**self.endpoints, **named, **self.endpoints}

    async def ask_each(self, path: str) -> list[tuple[str, Any]]:
        """Return the answers to a GET request with the URLs of their processes; those that refuse are omitted.

        Raises:
            AdminError: all refuse; the last refusal.
        """
        asked = list(self.endpoints.values())
        answers = await asyncio.gather(*(each.get(path) for each in asked), return_exceptions=True)
        pairs = zip(asked, answers, strict=True)
        found = [(each.url, answer) for each, answer in pairs if not isinstance(answer, BaseException)]
        errors = [each for each in answers if isinstance(each, BaseException)]
        if errors and not found:
            raise errors[-1]
        return found


_IDENTITY: Final = ("host", "pid", "started")
OF_SERVICES: Final = ("instances", "sessions")
"""Tables of a service; the others are of dispatchers."""


async def find_fleet(settings: Settings, urls: Sequence[str] | None, token: str) -> Fleet:
    """Return the endpoints at ``urls``, or those that announce themselves, and the peers that they name.

    Raises:
        CliError: there is none.
        TransportError: the broker is out of reach.
    """
    if urls:
        found = [AdminEndpoint(url, token) for url in urls]
    else:
        found = await _find_announced(settings, token)
        if not found:
            raise CliError(
                f"No process announces an admin endpoint on {settings.announcements} at {settings.broker_url}.",
                "name URLs, as in 'dispatch top 9464', or start services with 'dispatch serve FILE --admin HOST:PORT'",
            )
    fleet = Fleet(found)
    await fleet.find_peers()
    return fleet


async def _find_announced(settings: Settings, token: str) -> list[AdminEndpoint]:
    topic = TopicName.parse(settings.announcements)
    trust = settings.load_trust().within(topic.tenant)
    async with connect_broker(settings, "dispatch top") as broker:
        instances = await collect(broker, str(topic), Question(stats=True), DEFAULT_WAIT_S, trust)
    found = {}
    for each in instances:
        url = each.labels.get("admin")
        if url and not each.untrusted:
            with contextlib.suppress(CliError):
                endpoint = AdminEndpoint(url, token if each.is_signed else "", each.instance)
                found[endpoint.url] = endpoint
    return list(found.values())
