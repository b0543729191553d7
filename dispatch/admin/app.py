"""The application of the admin endpoint: health, metrics and ``/api/``, and what protects them."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import importlib.util
import ipaddress
import random
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from dispatch._internal import install_extra

if missing := [each for each in ("starlette", "uvicorn", "jinja2") if importlib.util.find_spec(each) is None]:
    text = f"The admin endpoint needs {' and '.join(missing)}. Install what it needs: {install_extra('http')}"
    raise ImportError(text, name=missing[0])

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dispatch._internal import loop_clock
from dispatch.admin import Admin, hash_token, parse_host_port
from dispatch.admin.actions import Actions, ApiError, decode_request
from dispatch.admin.console import Console
from dispatch.admin.http import LOOPBACK_HOSTS, describe_address, list_own_hosts, open_listener, replay, running_app
from dispatch.admin.peers import EndpointAnnouncer
from dispatch.admin.recent import RecentCalls, RecordedCall
from dispatch.admin.views import (
    DispatcherViews,
    ObservedService,
    ServiceViews,
    Values,
    Views,
    describe_call,
    describe_process,
)
from dispatch.announcements import read_topic
from dispatch.announcements.source import Announced
from dispatch.announcements.trust import Trust
from dispatch.calls.resolution import LiveCatalog
from dispatch.calls.runtime import Runtime
from dispatch.catalog.merge import PUT
from dispatch.errors import ErrorType, Outcome, TransportError
from dispatch.telemetry.events import BrokerChanged, CatalogChanged, Event, Events, SourceChanged
from dispatch.telemetry.exposition import metrics_app
from dispatch.telemetry.observers import Telemetry
from dispatch.transports.base import Transport

MAX_BODY_BYTES: Final = 64 * 1024
BODY_S: Final = 10
"""Seconds for a body to arrive."""
MAX_LIMIT: Final = 1_000
MAX_BEHIND: Final = 1_000
"""Events that a reader of a stream may be behind."""
READER_S: Final = 0.004
"""Seconds per reader within which all readers of a stream send: what is published meanwhile goes out together."""
KEEP_ALIVE_S: Final = 15.0
CLOCK_STEP_S: Final = 0.05
SESSION_S: Final = 12 * 3600.0
"""Seconds after which a browser signs in again."""
MAX_SESSIONS: Final = 1_000
_OPEN_PATHS: Final = frozenset({"/healthz", "/readyz", "/sign-in", "/sign-out"})
ERROR_TEXTS: Final = {404: "There is no such page.", 405: "Use GET to read, POST to act."}
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
}
"""Of every response."""


T = TypeVar("T")


class Caller(NamedTuple):
    """Who sends a request. ``user`` is empty without tokens."""

    user: str
    may_act: bool


def answer_json(value: object, status: int = 200) -> Response:
    """Return a response with ``value`` as JSON."""
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def answer_error(status: int, text: str) -> Response:
    """Return the response to a request that is refused."""
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return Response(msgspec.json.encode({"error": text}), status, headers, "application/json")


class SignIn(msgspec.Struct, forbid_unknown_fields=True):
    """The body of ``POST /sign-in``."""

    token: str


class Callers:
    """The callers by their tokens, and by the sessions of browsers that have signed in.

    The cookie of a browser has the id of a session, not the token: browsers send cookies to all ports of a host.

    Args:
        settings: of the endpoint.
    """

    def __init__(self, settings: Admin) -> None:
        self._callers = {hash_token(token): Caller(user, False) for user, token in settings.read.items()}
        self._callers |= {hash_token(token): Caller(user, True) for user, token in settings.act.items()}
        self._sessions: OrderedDict[bytes, tuple[float, Caller]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._callers)

    def find(self, request: Request) -> Caller | None:
        """Return who sends a request; None: it has no valid token or session."""
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return self._callers.get(hash_token(token.strip()))
        key = hash_token(request.cookies.get(name_cookie(request), ""))
        until, caller = self._sessions.get(key, (0.0, None))
        return caller if time.monotonic() < until else None

    def sign_in(self, token: str) -> str | None:
        """Return the id of a new session; None: the token is unknown."""
        caller = self._callers.get(hash_token(token))
        if caller is None:
            return None
        id = secrets.token_urlsafe()
        self._sessions[hash_token(id)] = time.monotonic() + SESSION_S, caller
        if len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)
        return id

    def sign_out(self, request: Request) -> None:
        """End the session of the browser that sends ``request``."""
        self._sessions.pop(hash_token(request.cookies.get(name_cookie(request), "")), None)


def name_cookie(request: Request) -> str:
    """Return the name of the cookie, which differs by port: consoles of one host do not replace the cookies of others. Over
    TLS only this host can set it (``__Host-``)."""
    _, _, port = request.headers.get("host", "").rpartition(":")
    name = f"dispatch-session-{port if port.isascii() and port.isdigit() else 'default'}"
    return f"__Host-{name}" if is_secure(request) else name


def is_secure(request: Request) -> bool:
    """Return whether a request came over TLS, to a proxy on this machine."""
    return bool(request.scope.get("scheme") == "https")


class Guard:
    """ASGI application that refuses what must not reach the endpoint: other hosts (DNS rebinding), requests of other sites,
    unknown tokens, large bodies. It adds the headers of every response.

    Args:
        app: receives all others.
        callers: of the endpoint.
        hosts: accepted names in ``Host``, without a port, where there are no tokens; every address is accepted.
    """

    def __init__(self, app: ASGIApp, callers: Callers, hosts: Iterable[str]) -> None:
        self._app = app
        self._hosts = frozenset(each.lower() for each in hosts)
        self._callers = callers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        request = Request(scope)
        try:
            scope["caller"] = self._check(request)
            body = await self._read_body(request, receive) if request.method not in ("GET", "HEAD") else None
        except ApiError as error:
            is_page = error.status == 401 and "text/html" in request.headers.get("accept", "")
            to = urlencode({"to": f"{quote(scope['path'])}?{scope['query_string'].decode('latin-1')}".rstrip("?")})
            refusal = Response(status_code=303, headers={"Location": f"/sign-in?{to}"}) if is_page else None
            await (refusal or answer_error(error.status, str(error)))(scope, receive, send_with_headers)
            return

        await self._app(scope, receive if body is None else replay(body, receive), send_with_headers)

    def _check(self, request: Request) -> Caller:
        host, path = split_port(request.headers.get("host", "")), request.scope["path"]
        # With tokens a name that an attacker binds to this address gains nothing: the browser has no cookie of that name.
        if not self._callers and host not in self._hosts and not is_address(host):
            fix = "Add the name to Admin(hosts=…), or require tokens (--admin-tokens)."
            raise ApiError(f"The endpoint is not reached as '{host[:80]}'. {fix}", 421)
        if request.method not in ("GET", "HEAD", "POST"):
            raise ApiError("Use GET or POST.", 405)
        if request.method == "POST":
            origin = request.headers.get("origin")
            if origin is not None and origin.partition("://")[2].lower() != request.headers["host"].lower():
                text = "The request comes from a page of another site. If not, let your proxy pass the header Host on."
                raise ApiError(text, 403)
            if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
                raise ApiError("Send JSON with Content-Type: application/json.", 415)
        if not self._callers:
            return Caller("", True)
        caller = self._callers.find(request)
        if caller is None and path not in _OPEN_PATHS and not path.startswith("/static/"):
            raise ApiError("Send Authorization: Bearer TOKEN.", 401)
        if request.method == "POST" and path not in _OPEN_PATHS and not (caller and caller.may_act):
            raise ApiError("This token may read only; an action needs one with the role act.", 403)
        return caller or Caller("", False)

    async def _read_body(self, request: Request, receive: Receive) -> bytes:
        declared = request.headers.get("content-length", "")
        size = int(declared) if declared.isdecimal() else 0
        body = b""
        try:
            async with asyncio.timeout(BODY_S):
                while max(size, len(body)) <= MAX_BODY_BYTES:
                    message = await receive()
                    if message["type"] != "http.request":
                        raise ApiError("The body is incomplete.", 400)
                    part: bytes = message.get("body", b"")
                    body += part
                    if not message.get("more_body", False):
                        return body
        except TimeoutError:
            raise ApiError(f"The body did not arrive within {BODY_S} s.", 408) from None
        raise ApiError(f"A body has at most {MAX_BODY_BYTES // 1024} KiB.", 413)


def split_port(host: str) -> str:
    """Return a value of ``Host`` without its port."""
    host = host.strip().lower()
    name, separator, port = host.rpartition(":")
    return name if separator and port.isdigit() and not (":" in name and not name.endswith("]")) else host


def is_address(host: str) -> bool:
    """Return whether a value of ``Host`` is an IP address: DNS rebinding needs a name. The addresses at which others reach
    this machine, or its container, are not known here."""
    with contextlib.suppress(ValueError):
        return bool(ipaddress.ip_address(host.removeprefix("[").removesuffix("]")))
    return False


class Stream(Generic[T]):
    """Server-sent events of one kind. An item is encoded once for all its readers; each of these has a queue, and is
    disconnected when it is too far behind.

    Args:
        subscribe: calls a function with each item; returns a function that ends that.
        encode: returns the event of an item.

    Attributes:
        readers: which items each of them accepts, by its queue.
    """

    def __init__(
        self, subscribe: Callable[[Callable[[T], object]], Callable[[], None]], encode: Callable[[T], bytes]
    ) -> None:
        self._subscribe = subscribe
        self._encode = encode
        self._unsubscribe: Callable[[], None] | None = None
        self.readers: dict[asyncio.Queue[bytes | None], Callable[[T], bool]] = {}
        self.is_closed = False

    def _publish(self, item: T) -> None:
        text = None
        for queue, accepts in list(self.readers.items()):
            if accepts(item):
                text = text or self._encode(item)
                if queue.full():
                    self._end(queue)
                else:
                    queue.put_nowait(text)

    def _end(self, queue: asyncio.Queue[bytes | None]) -> None:
        """End the reader of ``queue``, without what waits there."""
        self._forget(queue)
        while not queue.empty():
            queue.get_nowait()
        queue.put_nowait(None)

    def _forget(self, queue: asyncio.Queue[bytes | None]) -> None:
        self.readers.pop(queue, None)
        if not self.readers and self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None

    def close(self) -> None:
        """End all readers."""
        self.is_closed = True
        for queue in list(self.readers):
            self._end(queue)

    def respond(self, request: Request, accepts: Callable[[T], bool] = lambda _: True) -> Response:
        """Return a response that sends the accepted items as they are published, until the client leaves."""
        headers = {"X-Accel-Buffering": "no"}  # nginx would collect some kilobytes of events before it sends them
        if request.method == "HEAD":  # nothing would be sent, and the response would not end
            return Response(media_type="text/event-stream", headers=headers)

        async def read() -> AsyncIterator[bytes]:
            queue: asyncio.Queue[bytes | None] = asyncio.Queue(MAX_BEHIND)
            self.readers[queue] = accepts
            if self._unsubscribe is None:
                self._unsubscribe = self._subscribe(self._publish)
            try:
                yield b": open\n\n"
                while not self.is_closed:
                    try:
                        texts = [await asyncio.wait_for(queue.get(), KEEP_ALIVE_S)]
                    except TimeoutError:
                        yield b": still here\n\n"
                        continue
                    # Readers that all send in the same turn of the loop would delay the calls.
                    await asyncio.sleep(READER_S * len(self.readers) * random.random())
                    while not queue.empty():
                        texts.append(queue.get_nowait())
                    yield b"".join(text for text in texts if text is not None)
                    if None in texts:
                        return
            finally:
                self._forget(queue)

        return StreamingResponse(read(), media_type="text/event-stream", headers=headers)


def encode_event(kind: str, values: Values) -> bytes:
    """Return a server-sent event."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), msgspec.json.encode(values))


class CallFilter:
    """Selects calls by the parameters of a request.

    Raises:
        ApiError: a parameter is invalid.
    """

    def __init__(self, parameters: Mapping[str, str]) -> None:
        known = {"limit", "failed", "tool", "user", "outcome", "slower_than"}
        if unknown := sorted(set(parameters) - known):
            raise ApiError(f"The parameter '{unknown[0][:80]}' is unknown; there are {', '.join(sorted(known))}.", 400)
        self.is_failed = read_choice(parameters, "failed", ("1", "0")) == "1"
        self.limit = int(read_number(parameters, "limit", 100, MAX_LIMIT))
        self._slower_than = read_number(parameters, "slower_than", 0.0)
        self._tool = parameters.get("tool")
        self._user = parameters.get("user")
        self._outcome = read_choice(parameters, "outcome", [str(each) for each in Outcome])

    def accepts(self, call: RecordedCall) -> bool:
        """Return whether a call is selected."""
        return (
            (self._tool is None or call.tool.label == self._tool)
            and (self._user is None or call.user == self._user)
            and (self._outcome is None or call.outcome == self._outcome)
            and (call.duration > self._slower_than or not self._slower_than)  # a refused call takes 0 s
            and (not self.is_failed or call.outcome != "success")
        )


def read_choice(parameters: Mapping[str, str], name: str, choices: Sequence[str]) -> str | None:
    """Return a parameter, which is one of ``choices``; None: it is not given, or empty."""
    value = parameters.get(name) or None
    if value is not None and value not in choices:
        raise ApiError(f"'{name}' is one of {', '.join(choices)}.", 400)
    return value


def read_number(parameters: Mapping[str, str], name: str, default: float, most: float = 1e9) -> float:
    """Return a parameter from 0 to ``most``."""
    try:
        value = float(parameters.get(name, default))
    except ValueError:
        value = -1.0
    if not 0 <= value <= most:
        raise ApiError(f"'{name}' is no number from 0 to {most:g}.", 400)
    return value


class AdminApi:
    """``/api/…`` of one process.

    Args:
        views: what it shows.
        settings: of the endpoint.
        actions: on the process.
        callers: of the endpoint.

    Attributes:
        announcers: of the endpoint.
    """

    def __init__(self, views: Views, settings: Admin, actions: Actions, callers: Callers) -> None:
        self._actions = actions
        self._views = views
        self._settings = settings
        self._callers = callers
        self._started = time.time()
        self.announcers: list[EndpointAnnouncer] = []
        self._clock = loop_clock()
        self._wall = 0.0
        recent = views.recent
        self._calls: Stream[RecordedCall] = Stream(
            (lambda _: lambda: None) if recent is None else recent.subscribe,
            lambda call: encode_event("call", describe_call(call, self.wall)),
        )
        subscribe = views.events.subscribe
        self._changes: Stream[Values] = Stream(subscribe, lambda event: encode_event(event["event"], event))
        self._console = Console(self, views)
        subscribe(self._console.on_event)

    def routes(self) -> list[Route]:
        """Return the routes."""
        views = self._views

        def listed(path: str, read: Callable[[Request], object]) -> Route:
            async def endpoint(request: Request) -> Response:
                return answer_json(read(request))

            return Route(path, endpoint)

        return [
            Route("/healthz", self._health),
            Route("/readyz", self._ready),
            listed("/api/process", lambda _: self.describe_process()),
            listed("/api/tools", lambda request: self._list_tools(request.query_params.get("service"))),
            listed("/api/tools/{name:path}", self._tool),
            listed("/api/instances", lambda _: views.instances()),
            listed("/api/circuits", lambda request: views.circuits(request.query_params.get("tool"))),
            listed("/api/sessions", lambda _: views.sessions()),
            listed("/api/users", lambda _: views.users()),
            listed("/api/calls", lambda request: self.list_calls(request.query_params)),
            Route("/api/calls/stream", self._stream_calls),
            listed("/api/calls/{id}", lambda request: self.find_call(request.path_params["id"])),
            listed("/api/sources", lambda _: views.sources()),
            listed("/api/policy", lambda _: views.policy()),
            listed("/api/events", lambda _: views.events.latest()),
            Route("/api/events/stream", self._stream_events),
            listed("/api/peers", lambda _: self.peers()),
            self._acting("/api/circuits/{target:path}", "circuits"),
            self._acting("/api/instances/{target:path}", "instances"),
            self._acting("/api/sources/{target:path}/refresh", "sources"),
            self._acting("/api/tools/{target:path}/approve", "tools"),
            self._acting("/api/log-level", "log-level"),
            Route("/sign-in", self._sign_in, methods=["POST"]),
            Route("/sign-out", self._sign_out, methods=["POST"]),
            *self._console.routes(),
        ]

    def _acting(self, path: str, kind: str) -> Route:
        async def endpoint(request: Request) -> Response:
            body = decode_request(await request.body())
            target = request.path_params.get("target", "")
            return answer_json(await self._actions.perform(kind, target, body, request.scope["caller"].user))

        return Route(path, endpoint, methods=["POST"])

    @property
    def wall(self) -> float:
        """The time since the epoch at which the loop's clock was 0. It changes only if the clock was set."""
        wall = time.time() - self._clock()
        if abs(wall - self._wall) > CLOCK_STEP_S:
            self._wall = wall
        return self._wall

    async def _health(self, _request: Request) -> Response:
        return answer_json({"status": "ok"})

    async def _ready(self, _request: Request) -> Response:
        reasons = self._views.find_reasons()
        return answer_json({"ready": not reasons, "reasons": reasons}, 503 if reasons else 200)

    def describe_process(self) -> Values:
        """Return ``/api/process``."""
        return describe_process(self._views, self._started, self._settings.labels)

    def count_viewers(self) -> int:
        """Return how many pages are open."""
        return len(self._changes.readers)

    async def _sign_in(self, request: Request) -> Response:
        """Begin a session for a token. No script can read its cookie."""
        try:
            token = msgspec.json.decode(await request.body(), type=SignIn).token
        except ValueError:
            raise ApiError('Send {"token": "TOKEN"}.', 400) from None
        id = self._callers.sign_in(token)
        if id is None:
            raise ApiError("The token is not known here.", 401)
        response = answer_json({})
        secure = is_secure(request)
        response.set_cookie(name_cookie(request), id, httponly=True, samesite="strict", secure=secure)
        return response

    async def _sign_out(self, request: Request) -> Response:
        """End the session of a browser."""
        self._callers.sign_out(request)
        response = answer_json({})
        secure = is_secure(request)
        response.delete_cookie(name_cookie(request), httponly=True, samesite="strict", secure=secure)
        return response

    async def answer_error(self, request: Request, error: Exception) -> Response:
        """Return the response to a request that failed: a page for browsers, JSON under ``/api/``."""
        status = getattr(error, "status", getattr(error, "status_code", 500))
        text = str(error) if isinstance(error, ApiError) else ERROR_TEXTS[status]
        if "text/html" in request.headers.get("accept", "") and not request.scope["path"].startswith("/api/"):
            return self._console.render_error(request, status, text)
        return answer_error(status, text)

    def peers(self) -> list[Values]:
        """Return ``/api/peers``."""
        urls = (each if "://" in each else f"http://{each}" for each in self._settings.peers)
        found: dict[str, Values] = {url: {"url": url, "name": None, "source": "setting"} for url in urls}
        for announcer in self.announcers:
            for url, name in announcer.others().items():
                found.setdefault(url, {"url": url, "name": name, "source": "announcement"})
        return list(found.values())

    def _list_tools(self, service: str | None) -> list[Values]:
        return [each for each in self._views.tools() if service is None or each["service"] == service]

    def _tool(self, request: Request) -> Values:
        name = request.path_params["name"]
        found = self._views.tool(name, request.query_params.get("version"))
        if found is None:
            raise ApiError(f"There is no tool '{name[:80]}', or not in that version.", 404)
        return found

    def list_calls(self, parameters: Mapping[str, str]) -> list[Values]:
        """Return the calls that ``parameters`` select."""
        chosen = CallFilter(parameters)
        found: list[Values] = []
        recent, wall = self._views.recent, self.wall
        for call in () if recent is None else recent.latest(failed=chosen.is_failed):
            if len(found) >= chosen.limit:
                break
            if chosen.accepts(call):
                found.append(describe_call(call, wall))
        return found

    def find_call(self, id: str) -> Values:
        """Return one call with its attempts.

        Raises:
            ApiError: it is not known, or no longer.
        """
        call = None if self._views.recent is None else self._views.recent.find(id)
        if call is None:
            raise ApiError(f"The call '{id[:80]}' is not known, or no longer: the last 1,000 calls are.", 404)
        return describe_call(call, self.wall, whole=True)

    async def _stream_calls(self, request: Request) -> Response:
        return self._calls.respond(request, CallFilter(request.query_params).accepts)

    async def _stream_events(self, request: Request) -> Response:
        return self._changes.respond(request)

    def close_streams(self) -> None:
        """End the streams."""
        self._calls.close()
        self._changes.close()


class AdminEndpoint:
    """The admin endpoint of a process, on its event loop.

    Args:
        settings: address, tokens and hosts.
        views: what it shows.
        telemetry: whose metrics it serves.
        events: of the dispatcher; None: of a service.

    Attributes:
        url: once it is started.

    Raises:
        TransportError: the address is in use, or not of this machine.
    """

    def __init__(
        self, settings: Admin, views: DispatcherViews | ServiceViews, telemetry: Telemetry, events: Events | None
    ) -> None:
        self._actions = Actions(views, events)
        host, port = parse_host_port(settings.address)
        callers = Callers(settings)
        self._api = AdminApi(views, settings, self._actions, callers)
        answer = self._api.answer_error
        handlers: dict[Any, Any] = {ApiError: answer, 404: answer, 405: answer}
        app = Starlette(routes=self._api.routes(), exception_handlers=handlers)
        app.router.redirect_slashes = False
        metrics = metrics_app(telemetry)

        async def choose(scope: Scope, receive: Receive, send: Send) -> None:
            path = scope["path"].replace("%2E", ".")  # a name of dots, see write_path()
            await (metrics if path == "/metrics" else app)({**scope, "path": path}, receive, send)

        own_hosts = list_own_hosts(host)
        self._app = Guard(choose, callers, [*LOOPBACK_HOSTS, *own_hosts, *settings.hosts])
        try:
            self._listener = open_listener(host, port)
        except OSError as error:
            is_port = error.errno in (errno.EADDRINUSE, errno.EACCES)
            fix = "Use another port (0: any free one)" if is_port else "Use an address of this machine (0.0.0.0: all)"
            text = f"The admin endpoint cannot be served on {host}:{port} ({error.strerror}). {fix}."
            raise TransportError(ErrorType.PORT_TAKEN, text, may_have_run=False) from None
        self.url = describe_address(own_hosts[0].strip("[]"), self._listener.getsockname()[1])
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        """Announcers that end."""
        self._is_closed = False

    def start(self) -> None:
        """Accept connections."""
        self._task = asyncio.create_task(self._serve(), name="dispatch-admin")

    def announce(self, transport: Transport, topics: Mapping[str, tuple[Mapping[str, bytes], Trust | None]]) -> None:
        """Announce the endpoint on these topics alone from now on, in the background.

        Args:
            transport: a started connection.
            topics: of the announcements of tools, with the keys that sign those of the endpoint beside them, and the trust
                in those of other processes; None: these are not read.
        """
        name = self._api.describe_process()["name"]
        former, self._api.announcers = self._api.announcers, []
        for topic, (keys, trust) in topics.items():
            known = next((each for each in former if each.settings == (topic, keys, trust)), None)
            announcer = known or EndpointAnnouncer(transport, topic, keys, self.url, name, trust)
            self._api.announcers.append(announcer)
        for each in former:
            if each not in self._api.announcers:
                task = asyncio.create_task(each.close())
                self._leaving.add(task)
                task.add_done_callback(self._leaving.discard)

    async def _serve(self) -> None:
        with self._listener:
            async with running_app(self._app, self._listener, drain=1):
                await self._stop.wait()
                self._api.close_streams()

    async def close(self) -> None:
        """End the announcements, while the broker is still connected; then the streams and the connections. Idempotent."""
        self._is_closed = True
        announcers, self._api.announcers = self._api.announcers, []
        for each in announcers:
            await each.close()
        await asyncio.gather(*self._leaving)
        self._stop.set()
        self._actions.close()
        if self._task is not None:
            await self._task
        self.abandon()

    def abandon(self) -> None:
        """Release the address, because the event loop has ended."""
        self._listener.close()


class DispatcherAdmin(AdminEndpoint):
    """The admin endpoint of a dispatcher; it accepts connections at once.

    Args:
        settings: of the endpoint.
        transport, runtime, live, recent, events, telemetry, name: of the dispatcher.
    """

    def __init__(
        self,
        settings: Admin,
        transport: Transport,
        runtime: Runtime,
        live: LiveCatalog,
        recent: RecentCalls,
        events: Events,
        telemetry: Telemetry,
        name: str,
    ) -> None:
        self._transport = transport
        self._registry = live.registry
        topics = self._find_topics()  # before the address is in use: it may raise TopicError
        self.views = DispatcherViews(runtime, live, recent, name)
        super().__init__(settings, self.views, telemetry, events)
        events.subscribe(self.views.events.record)
        self.start()
        self.announce(transport, topics)
        events.subscribe(self._on_event)

    def _on_event(self, event: Event) -> None:
        if isinstance(event, SourceChanged | CatalogChanged):
            # Not now: in the event of a reload, the registry still has the former sources.
            asyncio.get_running_loop().call_soon(self._follow_sources)

    def _follow_sources(self) -> None:
        if not self._is_closed:
            self.announce(self._transport, self._find_topics())

    def _find_topics(self) -> dict[str, tuple[Mapping[str, bytes], Trust | None]]:
        """Return the topics of the sources that are announced services, or the default one, with their keys and trusts."""
        sources = [self._registry.source(each.id) for each in self._registry.sources() if each.id != PUT]
        trusts = {each.topic: each.trust for each in sources if isinstance(each, Announced)}
        if not trusts and (default := read_topic()) is not None:
            trusts = {default: Trust()}
        return {topic: (trust.keys, trust) for topic, trust in trusts.items()}


class ServiceAdmin(AdminEndpoint):
    """The admin endpoint of tool servers; it accepts connections at once.

    Args:
        settings: of the endpoint.
        servers: not started yet.
        telemetry, transport: of the servers.
    """

    def __init__(
        self, settings: Admin, servers: Sequence[ObservedService], telemetry: Telemetry, transport: Transport
    ) -> None:
        views = ServiceViews(servers)

        def record_connection(is_connected: bool, seconds: float) -> None:
            views.events.record(BrokerChanged(time.time(), transport.url, is_connected, round(seconds, 3)))

        transport.on_connection_change(record_connection)
        super().__init__(settings, views, telemetry, None)
        self.start()
        self._servers = servers
        self._transport = transport

    def announce_beside_tools(self) -> None:
        """Announce the endpoint on the topics of the servers' announcements, when the connection is there."""
        settings = [each.announce for each in self._servers if each.announce is not None]
        self.announce(self._transport, {each.topic: (each.keys, None) for each in settings})
