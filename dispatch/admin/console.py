"""The web console: pages of what the admin API answers, rendered here; they work without other hosts."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import http.client
import json
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import quote, urlsplit

import jinja2
import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dispatch._internal import DaemonThreads, excerpt
from dispatch.admin.api import describe_event, find_severity
from dispatch.admin.views import Values, Views
from dispatch.errors import Outcome
from dispatch.resilience.instances import UP_STATES

FOLDER: Final = Path(__file__).parent / "pages"
TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
SHOWN_CALLS: Final = 20
FAILING: Final = 0.05
"""Share of failed calls of the last minute from which a tool needs attention."""
MAX_ATTENTION: Final = 12
PEER_TIMEOUT_S: Final = 1.0
PEER_CACHE_S: Final = 2.0
MAX_PEER_BYTES: Final = 64 * 1024
VIEWER_S: Final = 0.005
"""Seconds per open page within which all viewers of a page get the same rendering of it."""
MAX_SHARED: Final = 8
MAX_SHARED_S: Final = 1.0
MAX_PEERS: Final = 1_000
"""Peers that are asked at most, whatever is announced."""
SIGN_IN: Final = "sign-in needed"
_OUT_OF_REACH: Final = {"state": "unreachable", "problem": "out of reach"}
_threads = DaemonThreads("dispatch-admin-peers")
UNKNOWN: Final = "\u2013"
_TONES: Final = ("ok", "warn", "bad")


# -- how values are written --------------------------------------------------------------------------------------


def find_tone(state: str | None) -> str:
    """Return the class of a state: ``ok``, ``warn`` or ``bad``."""
    return _TONES[find_severity(state)]


def write_number(value: float | None) -> str:
    """Return a number with separators."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def write_rate(value: float | None) -> str:
    """Return a rate with the digits that matter."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value else "0"


def write_share(value: float | None) -> str:
    """Return a share in per cent."""
    if value is None:
        return UNKNOWN
    return "0 %" if not value else f"{value * 100:.0f} %" if value >= 0.1 else f"{value * 100:.2g} %"


def write_duration(value: float | None) -> str:
    """Return seconds in the unit that fits."""
    if value is None:
        return UNKNOWN
    if value < 0.001:
        return f"{value * 1e6:.0f} µs"
    if value < 1:
        return f"{_write_digits(value * 1e3)} ms" if value < 0.9995 else "1.00 s"
    if value < 120:
        return f"{_write_digits(value)} s"
    minutes, hours = value / 60, value / 3600
    return f"{minutes:.0f} min" if hours < 2 else f"{hours:.0f} h" if hours < 48 else f"{hours / 24:.0f} d"


def _write_digits(value: float) -> str:
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def write_clock(at: float | None) -> str:
    """Return a point in time: the time of day, with the date if it is not today."""
    if at is None:
        return UNKNOWN
    form = "%H:%M:%S" if time.strftime("%F", time.localtime(at)) == time.strftime("%F") else "%b %d %H:%M"
    return time.strftime(form, time.localtime(at))


def write_value(value: Any) -> str:
    """Return a value of a policy."""
    if value is None:
        return "off"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) < 60 else f"{text[:59]}…"


def write_text(value: Any) -> Any:
    """Return what a page writes, a text with escapes in place of characters that are not printed, as on a terminal: one that
    turns the direction of writing would make a name look like another one."""
    if type(value) is not str or value.isprintable():
        return value
    return "".join(each if each.isprintable() or each in "\n\t" else ascii(each)[1:-1] for each in value)


def shorten(text: str) -> str:
    """Return a name of at most 32 characters: its beginning and its end."""
    return text if len(text) <= 32 else f"{text[:15]}…{text[-16:]}"


def write_path(name: str) -> str:
    """Return a name as a part of a path. Browsers remove ``.`` and ``..`` there, also as ``%2E``: both are encoded twice,
    and the endpoint decodes them."""
    return quote(name, safe="") if name.strip(".") else name.replace(".", "%252E")


def write_instance_path(id: str, service: str | None) -> str:
    """Return the address of the page of an instance: its name may be the one of an instance of another service, too."""
    return f"/instances/{write_path(id)}" + (f"?service={quote(service, safe='')}" if service else "")


def find_link(url: str | None) -> str | None:
    """Return a URL that another process has announced, if a page may link it: it may be a script, ``javascript:…``."""
    return url if url is not None and url.startswith(("http://", "https://")) else None


def tell_event(event: Values) -> str:
    """Return an event in words, with the time at which an action is undone."""
    until = event.get("until")
    return describe_event(event) + (f", until {write_clock(until)}" if until else "")


def list_changes(held: Values) -> list[str]:
    """Return the lines in which a held definition differs from those in force, all of them, each behind ``+``, ``-`` or a
    blank: a reviewer sees what a model would read, also characters that are not printed."""
    before, after = (
        [
            excerpt(line, len(line))
            for text in held[key].splitlines()
            for line in json.dumps(json.loads(text), indent=1, ensure_ascii=False).splitlines()
        ]
        for key in ("before", "after")
    )
    lines = difflib.unified_diff(before, after, n=2, lineterm="")
    return [line for line in lines if not line.startswith(("---", "+++", "@@"))]


FILTERS: Final[Mapping[str, Callable[..., Any]]] = {
    "tone": find_tone,
    "num": write_number,
    "rate": write_rate,
    "pct": write_share,
    "dur": write_duration,
    "clock": write_clock,
    "value": write_value,
    "shorten": shorten,
    "path": write_path,
    "instance_path": write_instance_path,
    "http": find_link,
    "story": tell_event,
    "changes": list_changes,
}


# -- the pages ---------------------------------------------------------------------------------------------------

Page = Callable[[Request], Awaitable[Response]]


class Api(Protocol):
    """The admin API, as pages use it."""

    def describe_process(self) -> Values: ...
    def list_calls(self, parameters: Mapping[str, str]) -> list[Values]: ...
    def find_call(self, id: str) -> Values: ...
    def count_viewers(self) -> int: ...
    def peers(self) -> list[Values]: ...


class Pages(jinja2.Environment):
    """The templates. perf: ``each.name`` of a dict is its item. Jinja looks for an attribute first, which takes a third of
    the time of a table."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Return an item or an attribute."""
        return obj[attribute] if type(obj) is dict and attribute in obj else super().getattr(obj, attribute)


@cache
def _load_pages() -> Pages:
    """Return the templates. perf: consoles of a process share them, compiled, which takes 0.1 s of processor time."""
    pages = Pages(
        loader=jinja2.FileSystemLoader(FOLDER),
        autoescape=True,
        trim_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=write_text,
    )
    pages.filters.update(FILTERS)
    return pages


class Console:
    """The pages of one process.

    Args:
        api: of the process.
        views: of the process.
    """

    def __init__(self, api: Api, views: Views) -> None:
        self._api = api
        self._views = views
        self._peers: dict[str, tuple[float, asyncio.Future[Values], list[socket.socket]]] = {}
        """When each peer was asked, its answer, and the connection, by its URL."""
        self._shared: dict[tuple[object, ...], tuple[float, Response]] = {}
        """When pages were rendered, by their address and caller."""
        self._pages = _load_pages()

    def routes(self) -> list[Route]:
        """Return the routes."""
        pages = {
            "/": self._overview,
            "/tools": self._tools,
            "/tools/{name:path}": self._tool,
            "/instances": self._instances,
            "/instances/{id:path}": self._instance,
            "/calls": self._calls,
            "/calls/{id}": self._call,
            "/catalogue": self._catalogue,
            "/users": self._users,
        }
        return [
            *(Route(path, self._share(page)) for path, page in pages.items()),
            Route("/sign-in", self._sign_in),
            Route("/static/{name}", self._static),
        ]

    def _share(self, page: Page) -> Page:
        """Return a page that is rendered once for all who read it at about the same time: many viewers delay no calls."""

        async def answer(request: Request) -> Response:
            scope, began, known = request.scope, time.monotonic(), self._shared
            viewers, key = self._api.count_viewers(), (scope["path"], scope["query_string"], scope["caller"])
            if viewers > 1 and key in known and began - known[key][0] < min(VIEWER_S * viewers, MAX_SHARED_S):
                return known[key][1]
            response = await page(request)
            if len(known) >= MAX_SHARED or viewers < 2:
                known.clear()
            known[key] = began, response
            return response

        return answer

    def on_event(self, _event: Values) -> None:
        """Render the pages anew, because something has changed."""
        self._shared.clear()

    def render(self, request: Request, template: str, page: str, code: int = 200, **values: Any) -> Response:
        """Return a page."""
        caller = request.scope["caller"]
        common = {"page": page, "process": self._api.describe_process(), "may_act": caller.may_act, "user": caller.user}
        return Response(self._pages.get_template(template).render(**common, **values), code, media_type="text/html")

    async def _sign_in(self, _request: Request) -> Response:
        return Response(self._pages.get_template("signin.html").render(), media_type="text/html")

    async def _static(self, request: Request) -> Response:
        name = request.path_params["name"]
        path = next((each for each in FOLDER.iterdir() if each.name == name and each.suffix in TYPES), None)
        if path is None:
            return self.render_error(request, 404, "There is no such page.")
        return Response(path.read_bytes(), media_type=TYPES[path.suffix], headers={"Cache-Control": "no-cache"})

    async def _overview(self, request: Request) -> Response:
        views = self._views
        tools, instances, sources = views.tools(), views.instances(), views.sources()
        circuits = [each for each in views.circuits(None) if each["state"] != "closed"]
        calls = sum((each["rate"] or 0.0) for each in tools)
        failed = sum((each["rate"] or 0.0) * (each["failure_rate"] or 0.0) for each in tools)
        fleet = [{**self._api.describe_process(), "url": None}, *await self._ask_peers()]
        return self.render(
            request,
            "overview.html",
            "Overview",
            failure_rate=failed / calls if calls else None,
            troubled_circuits=circuits,
            instances=instances,
            up=sum(each["state"] in UP_STATES for each in instances),
            attention=find_attention(tools, circuits, instances, sources, fleet),
            fleet=fleet,
            errors=count_errors(self._api.list_calls({"failed": "1", "limit": "400"}))[:12],
            events=self._views.events.latest()[:12],
        )

    async def _ask_peers(self) -> list[Values]:
        peers = self._api.peers()[:MAX_PEERS]
        found = await asyncio.gather(*(self._ask_peer(each) for each in peers))
        self._peers = {each["url"]: self._peers[each["url"]] for each in peers}
        return sorted(found, key=lambda each: (bool(each.get("ready")), each["name"]))

    async def _ask_peer(self, peer: Values) -> Values:
        """Return what a peer says of itself. All pages that are open share one request to it, which has a thread of its own:
        silent peers delay neither others nor the threads of the program."""
        url, now = peer["url"], time.monotonic()
        asked_at, answer, sockets = self._peers.get(url, (0.0, None, []))
        if answer is None or (answer.done() and now - asked_at > PEER_CACHE_S):
            sockets = []
            answer = asyncio.get_running_loop().run_in_executor(_threads, describe_peer, url, sockets)
            self._peers[url] = now, answer, sockets
        if (await asyncio.wait((answer,), timeout=2 * PEER_TIMEOUT_S))[1]:
            for each in sockets:
                with contextlib.suppress(OSError):  # ends the thread: the answer arrives byte by byte
                    each.shutdown(socket.SHUT_RDWR)
        known = answer.result() if answer.done() else _OUT_OF_REACH
        return {"name": peer["name"] or url, **known, "url": url}

    async def _tools(self, request: Request) -> Response:
        return self.render(request, "tools.html", "Tools", tools=self._views.tools())

    async def _tool(self, request: Request) -> Response:
        name = request.path_params["name"]
        tool = self._views.tool(name, request.query_params.get("version"))
        if tool is None:
            return self.render_error(request, 404, f"There is no tool '{name[:80]}'.")
        calls = self._api.list_calls({"tool": name, "limit": "10"})
        errors = count_errors(self._api.list_calls({"tool": name, "failed": "1", "limit": "400"}))
        return self.render(request, "tool.html", "Tools", tool=tool, calls=calls, errors=errors)

    def render_error(self, request: Request, status: int, text: str) -> Response:
        """Return the page of an error."""
        return self.render(request, "error.html", "", status, status=status, text=text)

    async def _instances(self, request: Request) -> Response:
        return self.render(request, "instances.html", "Instances", instances=self._views.instances())

    async def _instance(self, request: Request) -> Response:
        id, views, service = request.path_params["id"], self._views, request.query_params.get("service")
        known = (each for each in views.instances() if each["id"] == id and service in (None, each["service"]))
        instance = next(known, None)
        if instance is None:
            text = f"No instance '{id[:80]}' is known: it has left, or was not called yet."
            changes = (
                each for each in self._views.events.latest() if each["event"] == "instance" and each["instance"] == id
            )
            last = next((each for each in changes if service in (None, each["service"])), None)
            if last is not None:
                text += f" At {write_clock(last['at'])}: {tell_event(last)}."
            return self.render_error(request, 404, text)
        own, service = instance["kind"] == "own", instance["service"]
        targets = (f"instance {id}", f"instance {id} of {service}")
        return self.render(
            request,
            "instance.html",
            "Instances",
            instance=instance,
            console=next((each["url"] for each in self._api.peers() if id in (each["name"] or "").split(", ")), None),
            circuits=views.circuits_at(id, service),
            sessions=[
                each for each in views.sessions() if each["service"] in (None, service) and (own or each["peer"] == id)
            ],
            events=[
                each
                for each in self._views.events.latest()
                if (each.get("instance") == id and each.get("service", service) == service)
                or (target := each.get("target", "")) in targets
                or target.endswith(f" at {id}")
            ],
            calls=[
                each
                for each in self._api.list_calls({"limit": "1000"})
                if (each["instance"], each["service"]) == (id, service)
            ][:SHOWN_CALLS],
        )

    async def _calls(self, request: Request) -> Response:
        chosen = {name: value for name, value in request.query_params.items() if value}
        shown = {name: chosen.get(name) for name in ("tool", "user", "outcome", "slower_than", "failed")}
        if "user" in request.query_params and chosen.get("user") == "(no user)":
            chosen["user"] = ""
        calls = self._api.list_calls({"limit": "200", **chosen})
        return self.render(
            request, "calls.html", "Calls", calls=calls, chosen=shown, outcomes=[str(each) for each in Outcome]
        )

    async def _call(self, request: Request) -> Response:
        return self.render(request, "call.html", "Calls", call=self._api.find_call(request.path_params["id"]))

    async def _catalogue(self, request: Request) -> Response:
        views = self._views
        return self.render(request, "catalogue.html", "Catalogue", sources=views.sources(), tools=views.versions())

    async def _users(self, request: Request) -> Response:
        return self.render(request, "users.html", "Users", users=self._views.users())


class Peer(msgspec.Struct):
    """What the overview has of ``/api/process`` of a peer."""

    kind: str
    name: str
    ready: bool
    reasons: list[str]
    host: str
    tools: int
    rate: float
    in_flight: int
    failed: int
    uptime: float


def describe_peer(url: str, sockets: list[socket.socket]) -> Values:
    """Return ``/api/process`` of a peer, or why there is none. No proxy is asked, and no redirection followed.

    Args:
        sockets: gets the connection.
    """
    try:
        parts = urlsplit(url)
        if find_link(url) is None or parts.hostname is None:
            raise ValueError("not HTTP")
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        with contextlib.closing(kind(parts.hostname, parts.port, timeout=PEER_TIMEOUT_S)) as connection:
            connection.connect()
            sockets.append(connection.sock)
            connection.request("GET", f"{parts.path.rstrip('/')}/api/process")
            answer = connection.getresponse()
            if answer.status == 401:
                return {"state": SIGN_IN, "problem": SIGN_IN}
            if answer.status != 200:
                return _OUT_OF_REACH
            return msgspec.structs.asdict(msgspec.json.decode(answer.read(MAX_PEER_BYTES), type=Peer))
    except OSError:
        return _OUT_OF_REACH
    except (ValueError, http.client.HTTPException):
        return {"state": "unreachable", "problem": "no admin endpoint"}


def count_errors(calls: list[Values]) -> list[Values]:
    """Return the kinds of errors of calls, with the instances where they arose: what may have run first, then the most
    frequent."""
    kinds: dict[tuple[str, str, str, str], list[Values]] = {}
    for each in calls:
        kinds.setdefault((each["tool"], each["outcome"], each["error"], each["ran"]), []).append(each)
    found = [
        {
            "outcome": outcome,
            "error": error,
            "ran": ran,
            "count": len(its),
            "instances": Counter(each["instance"] for each in its if each["instance"]).most_common(5),
            "latest": its[0],
        }
        for (_, outcome, error, ran), its in kinds.items()
    ]
    return sorted(found, key=lambda kind: (kind["ran"] == "no", -kind["count"]))


def find_attention(
    tools: list[Values], circuits: list[Values], instances: list[Values], sources: list[Values], fleet: list[Values]
) -> list[tuple[str, str | None, str, str]]:
    """Return what an operator should look at: tone, link, state, and why; the worst first."""
    found: list[tuple[str, str | None, str, str]] = []
    for each in circuits:
        path = f"/tools/{write_path(each['tool'])}"
        share = next((tool["failure_rate"] for tool in tools if tool["name"] == each["tool"]), None)
        why = f"circuit of {each['tool']}" + (f": {write_share(share)} of its calls fail" if share else "")
        found.append((find_tone(each["state"]), path, each["state"], why))
    open_circuits = {each["tool"] for each in circuits}
    for each in sorted(tools, key=lambda tool: -(tool["failure_rate"] or 0.0)):
        if (each["failure_rate"] or 0.0) > FAILING and each["name"] not in open_circuits:
            why = f"{write_share(each['failure_rate'])} of the calls of {each['name']}"
            found.append(("bad", f"/tools/{write_path(each['name'])}", "failing", why))
    for each in instances:
        if each["state"] not in UP_STATES:
            why = f"{each['id']} of {each['service']}" + (" (by an operator)" if each["is_held"] else "")
            path = write_instance_path(each["id"], each["service"])
            found.append((find_tone(each["state"]), path, each["state"], why))
    for each in sources:
        if each["state"] != "ok":
            found.append(
                (find_tone(each["state"]), "/catalogue", each["state"], f"source {each['id']}: {each['problem']}")
            )
        if each["held"]:
            found.append(
                ("warn", "/catalogue", "held", f"{len(each['held'])} definitions of {each['id']} wait for approval")
            )
        if each["refused"]:
            found.append(("warn", "/catalogue", "refused", f"{len(each['refused'])} items of {each['id']} are invalid"))
    for each in fleet:
        if not each.get("ready") and each.get("state") != SIGN_IN:
            state = each.get("state", "not ready")
            name = each["name"] if each["url"] else "this process"
            why = f"{name}: {each.get('problem') or ', '.join(each['reasons'])}"
            found.append((find_tone(state), find_link(each["url"]), state, why))
    if not tools and fleet[0]["kind"] == "dispatcher":
        found.append(("warn", "/catalogue", "empty", "no tool is loaded, so every call fails as unknown-tool"))
    found.sort(key=lambda each: each[0] != "bad")
    more = len(found) - MAX_ATTENTION
    return found[:MAX_ATTENTION] + ([("warn", "/tools", "more", f"{more} further ones")] if more > 0 else [])
