"""A client of admin endpoints, which may be of anyone: their answers are checked, and one that is invalid is an
:class:`AdminError` of its process. Also the options of the commands that read them."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain, islice, zip_longest
from typing import Annotated, Any, Final, NamedTuple, TypedDict
from urllib.parse import urlsplit

import msgspec
import typer

from dispatch._internal import DaemonThreads, excerpt, is_deeper
from dispatch.admin import ADMIN_LABEL, is_endpoint
from dispatch.admin.api import Call, Circuit, Event, Instance, Peer, Process, Session, Tool, User
from dispatch.announcements import Question, admin_topic
from dispatch.cli.base import CliError, Settings
from dispatch.cli.screen import Row, merge
from dispatch.cli.sources import connect_broker
from dispatch.cli.wire import DEFAULT_WAIT_S, collect
from dispatch.schemas import MAX_DEPTH

TIMEOUT_S: Final = 3.0
"""Seconds for one answer, however slowly it arrives."""
SILENCE_S: Final = 40.0
"""Seconds without any line of a stream, which has a comment every 15 s."""
FORGET_S: Final = 60.0
"""Seconds that a silent process is shown which no other one names any more."""
MAX_BYTES: Final = 64 * 1024 * 1024
MAX_PEERS: Final = 1_000
"""Peers that are read at most, whatever the processes name."""
_threads = DaemonThreads("dispatch-admin-client")
"""A process that does not answer delays neither the others nor the end of the command."""


class _Refusal(TypedDict):
    error: str


ROWS: Final[Mapping[str, Any]] = {
    "tools": list[Tool],
    "instances": list[Instance],
    "circuits": list[Circuit],
    "users": list[User],
    "sessions": list[Session],
    "calls": list[Call],
    "events": list[Event],
}
"""Types of the tables of :meth:`Fleet.fetch`."""


def decode(content: bytes, kind: Any) -> Any:
    """Return a JSON value as a type, without the fields that the type does not have.

    Raises:
        ValueError: it is not JSON, or does not fit; the reason.
    """
    try:
        value = msgspec.json.decode(content)
        if is_deeper(value, MAX_DEPTH):
            raise RecursionError
        return msgspec.convert(value, kind)
    except RecursionError:
        raise ValueError("too many nested objects and lists") from None
    except (msgspec.DecodeError, UnicodeError) as error:
        if not isinstance(error, msgspec.ValidationError):
            raise ValueError("not JSON in UTF-8") from None
        raise ValueError(excerpt(str(error), 120)) from None


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

    Attributes:
        problem: why ``url`` is no address, and every request fails; empty: it is one.
    """

    def __init__(self, url: str, token: str = "", name: str = "") -> None:
        self.problem = ""
        try:
            secure, self._host, self._port = _parse_url(url)
            host = f"[{self._host}]" if ":" in self._host else self._host
            self.url = f"http{'s' * secure}://{host}:{self._port}"
        except ValueError:
            secure, self.url = False, excerpt(url)
            self.problem = f"'{self.url}' is no address of an admin endpoint"
        self._connection = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.name = name or self.url

    async def get(self, path: str, kind: Any) -> Any:
        """Return the JSON value at ``path``.

        Args:
            kind: type of the value.

        Raises:
            AdminError: there is none that fits.
        """
        return await self._exchange("GET", path, None, kind)

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Send an action and return its answer.

        Raises:
            AdminError: it was refused.
        """
        return await self._exchange("POST", path, json.dumps(body).encode(), Event)

    async def follow(self, path: str, kind: Any) -> AsyncGenerator[Any, None]:
        """Yield None when the stream is open, then the value of each server-sent event, which fits ``kind``.

        Raises:
            AdminError: the stream is refused, or has ended.
        """
        if self.problem:
            raise AdminError(self.problem)
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[Any] = asyncio.Queue()
        connection = self._connection(self._host, self._port, timeout=SILENCE_S)

        def put(value: Any) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(queue.put_nowait, value)

        def read() -> None:
            try:
                with self._send(connection, "GET", path, None) as response:
                    if response.status != 200:
                        raise self._refusal("GET", path, response.status, response.read(MAX_BYTES))
                    put(None)
                    while line := response.readline(MAX_BYTES):
                        if line.startswith(b"data:"):
                            put(self._decode("GET", path, line[5:], kind))
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

    async def _exchange(self, method: str, path: str, body: bytes | None, kind: Any) -> Any:
        if self.problem:
            raise AdminError(self.problem)
        sockets: list[socket.socket] = []

        def request() -> Any:
            connection = self._connection(self._host, self._port, timeout=TIMEOUT_S)
            try:
                connection.connect()
                sockets.append(connection.sock)
                with self._send(connection, method, path, body) as response:
                    content = response.read(MAX_BYTES + 1)
            except (OSError, ValueError, http.client.HTTPException) as error:
                raise self._silence(error) from None
            finally:
                connection.close()
            if response.status >= 300:
                raise self._refusal(method, path, response.status, content)
            return self._decode(method, path, content, kind)

        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await asyncio.get_running_loop().run_in_executor(_threads, request)
        except TimeoutError:  # of an answer that arrives byte by byte: each read of the socket succeeds
            for each in sockets:
                with contextlib.suppress(OSError):  # ends the thread
                    each.shutdown(socket.SHUT_RDWR)
            raise self._silence(TimeoutError("timed out")) from None

    def _send(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None
    ) -> http.client.HTTPResponse:
        # No proxy and no redirection: the token is for this address alone.
        headers = self._headers | ({} if body is None else {"Content-Type": "application/json"})
        connection.request(method, path, body, headers)
        return connection.getresponse()

    def _decode(self, method: str, path: str, content: bytes, kind: Any) -> Any:
        try:
            if len(content) > MAX_BYTES:
                raise ValueError(f"more than {MAX_BYTES:,} bytes")
            return decode(content, kind)
        except ValueError as error:
            text = (
                f"{self.url} is no admin endpoint of this version: invalid answer to {method} {excerpt(path)}: {error}"
            )
            raise AdminError(text) from None

    def _silence(self, error: Exception) -> AdminError:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
        return AdminError(f"{self.url} does not answer: {excerpt(reason, 200)}")

    def _refusal(self, method: str, path: str, status: int, content: bytes) -> AdminError:
        if status == 401:
            fix = (
                "--token or DISPATCH_ADMIN_TOKEN has a wrong token"
                if self._headers
                else "give --token or DISPATCH_ADMIN_TOKEN, and name this URL"  # processes that were found get no token
            )
            return AdminError(f"{self.url} answers 401: {fix}", status)
        try:
            text = decode(content, _Refusal)["error"]
        except ValueError:
            text = content[:1_000].decode(errors="replace")
            if text.lstrip().startswith("<"):
                text = "an HTML page, so that it is no admin endpoint (connect(admin=…), --admin)"
        reason = excerpt(" ".join(text.split()), 200).rstrip(".") or "no reason given"
        return AdminError(f"{self.url} answers {status} to {method} {excerpt(path)}: {reason}.", status)


def _parse_url(url: str) -> tuple[bool, str, int]:
    """Return whether it is https, the host and the port.

    Raises:
        ValueError: it is no address.
    """
    text = f"127.0.0.1:{url}" if url.isdecimal() else url
    parts = urlsplit(text if "://" in text else f"http://{text}")
    host, port = parts.hostname, parts.port
    if parts.scheme not in ("http", "https") or not host or port is None or not host.isprintable() or " " in host:
        raise ValueError
    host.encode("idna")
    return parts.scheme == "https", host, port


# The processes that a command reads.


@dataclass(frozen=True)
class Endpoints:
    """Which processes a command reads.

    Attributes:
        urls (URL): Admin endpoints: HOST:PORT, http://HOST:PORT, or the port on this machine. Default: those that announce
            themselves on the broker.
        token (TOKEN): Token of the admin endpoints. Announced endpoints get it only if their announcement is signed with a
            key of --trust.
    """

    urls: Annotated[list[str] | None, typer.Argument(envvar="DISPATCH_ADMIN_URLS")] = None
    token: Annotated[str, typer.Option(envvar="DISPATCH_ADMIN_TOKEN")] = ""


class Answers(NamedTuple):
    """Answers of several processes.

    Attributes:
        found: with the URL of the process.
        refused: why there is none, by the URL of the process.
    """

    found: list[tuple[str, Any]]
    refused: dict[str, AdminError]


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
        # A process may be given by several names of its host. The first one counts: a peer that claims to be another process
        # must not hide it.
        once: dict[tuple[Any, ...], tuple[Row, dict[str, list[Row]]]] = {}
        for process, rows in sorted(found, key=lambda each: each[0]["state"] == "unreachable"):
            once.setdefault(tuple(process.get(key, process["url"]) for key in IDENTITY), (process, rows))
        return {
            "processes": [process for process, _ in once.values()],
            **{name: merge(name, chain.from_iterable(rows[name] for _, rows in once.values())) for name in tables},
        }

    async def _fetch(self, endpoint: AdminEndpoint, tables: Mapping[str, str]) -> tuple[Row, dict[str, list[Row]]]:
        url = endpoint.url
        rows: dict[str, list[Row]] = {name: [] for name in tables}
        try:
            process = {**await endpoint.get("/api/process", Process), "url": url}
            names = [name for name in tables if process["kind"] != "service" or name in OF_SERVICES]
            answers = await asyncio.gather(*(endpoint.get(tables[name], ROWS[name]) for name in names))
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
        lists = [peers for _, peers in (await self.ask_each("/api/peers", list[Peer])).found]
        # The first ones of each list: a process that names many must not displace those of the others.
        peers = (each for each in chain.from_iterable(zip_longest(*lists)) if each is not None)
        # A peer is a claim of another process: it does not get the token.
        endpoints = (AdminEndpoint(each["url"], name=each["name"]) for each in islice(peers, MAX_PEERS))
        named = {each.url: each for each in endpoints}
        until = time.monotonic() - FORGET_S
        for url in self._peers - named.keys():
            if self._silent_since.get(url, until) < until:
                del self.endpoints[url]
        self._peers |= named.keys() - self.endpoints.keys()
        self._peers &= self.endpoints.keys() | named.keys()
        self.endpoints = {**self.endpoints, **named, **self.endpoints}

    async def ask_each(self, path: str, kind: Any) -> Answers:
        """Return the answers to a GET request, which fit the type ``kind``."""
        asked = list(self.endpoints.values())
        answers = await asyncio.gather(*(each.get(path, kind) for each in asked), return_exceptions=True)
        result = Answers([], {})
        for each, answer in zip(asked, answers, strict=True):
            if isinstance(answer, AdminError):
                result.refused[each.url] = answer
            elif isinstance(answer, BaseException):
                raise answer
            else:
                result.found.append((each.url, answer))
        return result


IDENTITY: Final = ("host", "pid", "started")
OF_SERVICES: Final = ("instances", "sessions")
"""Tables of a service; the others are of dispatchers."""


async def find_fleet(settings: Settings, given: Endpoints) -> Fleet:
    """Return the given endpoints, or those that announce themselves, and the peers that they name.

    Raises:
        CliError: there is none, or one of the URLs is no address.
        TransportError: the broker is out of reach.
    """
    token = given.token.strip()  # a variable from a file may end with a line end
    if not token.isascii() or not token.isprintable():
        raise CliError("The token has characters that no token has.", "change --token or DISPATCH_ADMIN_TOKEN")
    if given.urls:
        found = [AdminEndpoint(url, token) for url in given.urls]
        if wrong := next((each.problem for each in found if each.problem), None):
            raise CliError(f"{wrong}.", "write it as HOST:PORT or http://HOST:PORT")
    else:
        found = await _find_announced(settings, token)
        if not found:
            raise CliError(
                f"No process announces an admin endpoint on {admin_topic(settings.announcements)} at "
                f"{settings.broker_url}.",
                "start agents with connect(admin=…), services and others with --admin HOST:PORT; or name URLs, as in "
                "'dispatch top 9464'",
            )
    fleet = Fleet(found)
    await fleet.find_peers()
    return fleet


async def _find_announced(settings: Settings, token: str) -> list[AdminEndpoint]:
    """Return the announced endpoints. Each announcement is a claim: only one with a signature gets the token, and of those
    with one URL it counts."""
    trust = settings.load_trust()
    async with connect_broker(settings, "dispatch top") as broker:
        topic = admin_topic(settings.announcements)
        processes = await collect(broker, topic, Question(stats=True), DEFAULT_WAIT_S, trust)
    found: dict[str, AdminEndpoint] = {}
    for each in sorted(processes, key=lambda process: not process.is_signed):
        url = each.labels.get(ADMIN_LABEL, "")
        if is_endpoint(url) and (each.is_signed or not trust.signed_only) and len(found) < MAX_PEERS:
            endpoint = AdminEndpoint(url, token if each.is_signed else "", each.instance)
            found.setdefault(endpoint.url, endpoint)
    return list(found.values())
