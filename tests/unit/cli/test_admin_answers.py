"""``dispatch top``, ``calls``, ``calls show`` and ``tail`` where a process does not answer as the admin API does: it is
named with the reason, and its neighbours are shown."""

from __future__ import annotations

import contextlib
import io
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, get_args, get_type_hints

import pytest
from rich.console import Console

from dispatch.admin import api
from dispatch.cli import admin, calls
from dispatch.cli.admin import ROWS, AdminEndpoint, AdminError, Fleet, decode
from dispatch.cli.screen import TABLES, call_line, render_table
from dispatch.cli.top import TopScreen
from tests.helpers import admin_values
from tests.unit.cli.conftest import Run

Body = bytes | Callable[[BaseHTTPRequestHandler], None]
Pages = Mapping[str, Body]
START_S = 1_795_710_000.0


@contextlib.contextmanager
def serving(pages: Pages, otherwise: Body | None = None) -> Iterator[str]:
    """A server that answers each path with its body, and others with ``otherwise`` or 404; its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = pages.get(self.path.partition("?")[0], otherwise)
            if callable(body):
                with contextlib.suppress(OSError):
                    body(self)
                return
            self.send_response(404 if body is None else 200)
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def test_where_nothing_is_announced_the_fix_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def find_none(*_: object) -> list[AdminEndpoint]:
        return []

    monkeypatch.setattr(admin, "_find_announced", find_none)
    err = run.refused("top", "--broker", "pulsar://host:6650")
    topic = "non-persistent://tg/notify/tool-descriptors-admin"
    assert f"No process announces an admin endpoint on {topic} at pulsar://host:6650." in err
    assert "start agents with connect(admin=…), services and others with --admin HOST:PORT" in " ".join(err.split())


def honest(name: str = "good", /, **changes: Any) -> dict[str, Body]:
    """The pages of a dispatcher."""
    values: dict[str, Any] = admin_values.values()
    process = {**values["processes"][0], "name": name, "started": START_S, "host": name}
    pages = {f"/api/{table}": values[table] for table in ROWS} | {"/api/process": process, "/api/peers": []}
    pages["/api/calls/8124"] = admin_values.timed_out_call()
    return {path: json.dumps(value).encode() for path, value in (pages | changes).items()}


@pytest.fixture
def good() -> Iterator[str]:
    with serving(honest()) as url:
        yield url


def drawn(renderable: Any, width: int) -> str:
    file = io.StringIO()
    Console(file=file, width=width).print(renderable)
    return file.getvalue()


EVIL = "\x1b]0;evil\x07\x1b[2J\n\u202eevil"
ODD = {
    "list": b"[]",
    "object": b"{}",
    "null": b"null",
    "number": b"-1",
    "nulls": b"[null]",
    "numbers": b"[1e308]",
    "texts": b'["a"]',
    "empty": b"",
    "page": b"<html>\x1b[2Jhello</html>",
    "latin1": b'{"name": "caf\xe9"}',
    "surrogate": b'{"kind": "dispatcher", "name": "\\ud800"}',
    "deep": b"[" * 100_000,
    "nested": b"[" * 900 + b"]" * 900,
    "digits": b'{"kind": "dispatcher", "name": "n", "pid": 1' + b"0" * 5_000 + b"}",
    "infinite": b'{"kind": "dispatcher", "name": "n", "rate": 1e999}',
    "not a number": b'{"kind": "dispatcher", "name": "n", "rate": NaN}',
}


@pytest.mark.costly
@pytest.mark.parametrize("body", ODD.values(), ids=ODD)
def test_a_process_with_odd_answers_is_a_row_with_the_reason(run: Run, good: str, body: bytes) -> None:
    with serving({}, body) as bad:
        values = run("top", good, bad, "--json").json
        assert {row["url"]: row["state"] for row in values["processes"]} == {good: "ready", bad: "unreachable"}
        assert "invalid answer to GET /api/process" in values["processes"][1]["problem"]
        assert [row["name"] for row in values["tools"]] == ["find", "price", "translate"]
        assert "is unreachable" in run("top", good, bad).out
        listed = run("calls", good, bad, "--json").json
        assert [call["id"] for call in listed["calls"]] == ["8124", "8123", "8122"]
        assert [each["url"] for each in listed["unreachable"]] == [bad]
        shown = run("calls", "show", "8124", good, bad, code=0)
        assert "attempt 1 shop-2" in shown.out
        assert f"Warning: {bad} is no admin endpoint of this version: invalid answer to GET" in shown.err


FIELDS: dict[str, Any] = {
    "/api/tools": {"name": ["price"], "failure_rate": "high", "calls": -1, "instances_up": [], "circuit": {}},
    "/api/instances": {"id": 1, "state": None, "latency": "1", "in_flight": 10**30, "is_held": "no", "refused": [1]},
    "/api/circuits": {"tool": None, "state": 7, "until": 1e300, "instance": {}},
    "/api/users": {"user": None, "last": 1e200},
    "/api/sessions": {"peer": {}, "rtt": "fast"},
    "/api/calls": {"id": 8124, "at": 1e18, "duration": None, "attempts": None, "outcome": []},
    "/api/events": {"event": None, "at": "now"},
}


@pytest.mark.wall_clock
@pytest.mark.parametrize("path", FIELDS)
async def test_each_field_is_checked(path: str) -> None:
    table = path.rpartition("/")[2]
    pages, row = honest(), admin_values.values()[table][0]
    with serving(pages) as url, serving(honest("other")) as neighbour:
        fleet = Fleet([AdminEndpoint(url), AdminEndpoint(neighbour)])
        for field, value in FIELDS[path].items():
            pages[path] = json.dumps([{**row, field: value}]).encode()
            values = await fleet.fetch({table: path})
            reasons = {each["url"]: each["problem"] for each in values["processes"]}
            assert f"invalid answer to GET {path}: " in reasons[url], (field, value)
            assert field in reasons[url]
            assert reasons[neighbour] == ""
            assert {each["process"] for each in values[table]} == {"other"}


def test_every_shown_field_has_a_type() -> None:
    kinds = {name: get_args(kind)[0] for name, kind in ROWS.items()} | {"processes": api.Process}
    added = {"last", "url", "state", "problem", "process"}
    for table, columns in TABLES.items():
        assert {column.key for column in columns} <= {*get_type_hints(kinds[table]), *added}, table


def test_control_characters_are_shown_and_never_sent_to_the_terminal(run: Run) -> None:
    rows = admin_values.values()
    evil = honest(
        **{
            "/api/process": {**rows["processes"][0], "name": EVIL, "kind": "dispatcher", "reasons": [EVIL]},
            "/api/tools": [admin_values.tool(EVIL, circuit=EVIL)],
            "/api/instances": [admin_values.instance(EVIL, EVIL)],
            "/api/circuits": [admin_values.circuit(EVIL, EVIL)],
            "/api/events": [{"event": EVIL, "at": START_S, "tool": EVIL}, {"event": "circuit", "at": START_S}],
            "/api/calls": [admin_values.call(EVIL, EVIL, EVIL, error=EVIL, user=EVIL, instance=EVIL, ran=EVIL)],
            "/api/calls/1": {
                **admin_values.timed_out_call(),
                "id": EVIL,
                "outcome": EVIL,
                "message": EVIL,
                "tool": EVIL,
            },
        }
    )

    def refuse(request: BaseHTTPRequestHandler) -> None:
        request.wfile.write(b"HTTP/1.0 500 Oops\r\n\r\n" + json.dumps({"error": EVIL}).encode())

    def garble(request: BaseHTTPRequestHandler) -> None:
        request.wfile.write(EVIL.encode() * 3)

    with serving(evil) as url, serving({}, refuse) as refusing, serving({}, garble) as garbling:
        for command in (("top",), ("calls",), ("calls", "show", "1")):
            end = run(*command, url, url.replace("127.0.0.1", "localhost"), refusing, garbling, code=0)
            for text in (end.out, end.err):
                assert all(character.isprintable() or character == "\n" for character in text), command
            assert r"\x1b[2J" in end.out


@pytest.mark.wall_clock
async def test_every_page_of_the_screen_shows_odd_texts() -> None:
    history = {"seconds": 5, "calls": [2**53, 0], "failed": []}
    nested: Any = EVIL
    for _ in range(90):
        nested = [nested]
    details: dict[str, Any] = {
        **admin_values.timed_out_call(),
        **admin_values.tool(EVIL),
        "description": EVIL,
        "history": history,
        "policy": [{"key": EVIL, "value": nested, "source": EVIL}],
        "events": [
            {"event": kind, "at": START_S} for kind in ("circuit", "instance", "action", "catalog", "source", EVIL)
        ],
        "waits": [{"start": -1e12, "duration": 1e12}],
        "trail": [{"number": 1, "start": 1e12, "duration": None, "outcome": EVIL, "reason": EVIL, "instance": EVIL}],
    }
    pages = honest() | {"/api/tools": json.dumps([admin_values.tool(EVIL)]).encode()}
    pages.pop("/api/calls/8124")
    with serving(pages, json.dumps(details).encode()) as url:
        screen = TopScreen(Fleet([AdminEndpoint(url)]), "alice")
        await screen.start()
        seen = ""
        for key in ("1", "enter", "enter", "escape", "escape", *"234567", "6", "enter", "escape", "1", "o", "escape"):
            await screen.press(key)
            text = drawn(screen.render(100, 30), 100)
            assert all(character.isprintable() or character == "\n" for character in text), key
            seen += text
    assert "invalid answer" not in seen
    for part in ("policy: ", "catalogue: ? tools", "attempt 1 ", r"\x1b[2J"):
        assert part in seen, part


def test_the_line_of_a_call_has_its_error_also_after_a_long_name() -> None:
    line = call_line(admin_values.call("7", user="u" * 200, outcome="tool_error", error="ValueError"))
    assert len(line) < 140
    assert "ValueError" in line.plain


def test_one_long_name_does_not_widen_the_whole_list_of_calls(run: Run) -> None:
    long = {**admin_values.call("1"), "user": "u" * 256}
    with serving(honest(**{"/api/calls": [long]})) as url:
        assert max(map(len, run("calls", url).out.splitlines())) < 140
        assert run("calls", url, "--json").json["calls"][0]["user"] == "u" * 256


async def test_on_a_narrow_screen_names_are_cut_and_figures_are_not() -> None:
    long = "u" * 200
    pages = honest() | {
        "/api/users": json.dumps([admin_values.user(long)]).encode(),
        "/api/calls?limit=200": json.dumps([admin_values.call("7", user=long, instance=long)]).encode(),
        "/api/instances": json.dumps([admin_values.instance("shop-1"), admin_values.instance(long)]).encode(),
    }
    with serving(pages) as url:
        screen = TopScreen(Fleet([AdminEndpoint(url)]), "alice")
        await screen.start()
        expected = {
            "1": ("3 of 3", "shop-1", "closed"),
            "2": ("shop-1", "12.0"),
            "4": ("321",),
            "6": ("success", "price"),
        }
        for key, texts in expected.items():
            await screen.press(key)
            shown = drawn(screen.render(60, 30), 60)
            for text in (*texts, "q quit"):
                assert text in shown, (key, text, shown)


@pytest.mark.parametrize("width", [100, 140])
def test_two_long_names_displace_no_figure(width: int) -> None:
    table = render_table("tools", [admin_values.tool("t" * 200, "s" * 200, p95=1.2)], width)
    heading, row = drawn(table, width).splitlines()
    assert "% failed" in heading
    assert row.rstrip().endswith("3 of 3")


@pytest.mark.parametrize(
    "url",
    ["http://[", "http://[::1", "host:99999", "ftp://x:1", "http://a..b:1", "http://a b:1", "http://x\x00:1", "x"],
)
def test_a_peer_without_an_address_is_a_row(run: Run, url: str) -> None:
    with serving(honest(**{"/api/peers": [{"url": url, "name": "broken"}]})) as named:
        values = run("top", named, "--json").json
        (broken,) = [row for row in values["processes"] if row["name"] == "broken"]
        assert (broken["state"], "is no address of an admin endpoint" in broken["problem"]) == ("unreachable", True)
        assert len(values["tools"]) == 3
        assert "is no address of an admin endpoint" in run("calls", named, code=0).err
    assert "is no address of an admin endpoint" in run.refused("top", url)


def test_a_process_that_names_many_peers_does_not_displace_those_of_others(
    run: Run, good: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "MAX_PEERS", 3)
    many = [{"url": f"bad {number}", "name": "x"} for number in range(9)]
    with (
        serving(honest("many", **{"/api/peers": many})) as url,
        serving(honest("few", **{"/api/peers": [{"url": good, "name": "good"}]})) as other,
    ):
        states = {row["url"]: row["state"] for row in run("top", url, other, "--json").json["processes"]}
    assert states[good] == "ready"
    assert len(states) == 5


def test_a_call_of_a_process_that_was_named_is_not_shown_beside_those_of_others_with_its_number(
    run: Run, good: str
) -> None:
    with serving(honest("first", **{"/api/peers": [{"url": good, "name": "good"}]})) as url:
        assert [call["process"] for call in run("calls", "show", "8124", url, "--json").json] == ["first"]
        assert len(run("calls", "show", "8124", url, good, "--json").json) == 2
    pages = honest("first", **{"/api/peers": [{"url": good, "name": "good"}]})
    del pages["/api/calls/8124"]
    with serving(pages) as url:  # it does not have the call: a peer may
        assert [call["process"] for call in run("calls", "show", "8124", url, "--json").json] == ["good"]


def test_a_process_with_two_addresses_is_asked_once_for_its_calls(run: Run) -> None:
    pages = honest("first")
    with serving(pages) as url, serving(pages) as alias:
        pages["/api/peers"] = json.dumps([{"url": alias, "name": "first"}]).encode()
        assert len(run("calls", url, "--json").json["calls"]) == 3


def test_a_peer_that_claims_to_be_another_process_does_not_hide_it(run: Run, good: str) -> None:
    with serving(honest(**{"/api/tools": []})) as liar:
        values = run("top", good, liar, "--json").json
    assert [row["url"] for row in values["processes"]] == [good]
    assert len(values["tools"]) == 3


def drip(request: BaseHTTPRequestHandler) -> None:
    request.wfile.write(b"HTTP/1.0 200 OK\r\n\r\n")
    while True:
        request.wfile.write(b" ")
        time.sleep(0.01)


@pytest.mark.wall_clock
async def test_an_answer_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "TIMEOUT_S", 0.3)
    before = set(threading.enumerate())
    with serving({}, drip) as url, pytest.raises(AdminError, match="does not answer: timed out"):
        await AdminEndpoint(url).get("/api/process", api.Process)
    for thread in set(threading.enumerate()) - before:
        thread.join(5)
        assert not thread.is_alive()


def test_an_answer_has_a_largest_size(run: Run, good: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "MAX_BYTES", 30_000)
    with serving({}, b'"' + b"x" * 40_000 + b'"') as huge:
        states = {row["url"]: row["problem"] for row in run("top", good, huge, "--json").json["processes"]}
    assert states[good] == ""
    assert states[huge].endswith("invalid answer to GET /api/process: more than 30,000 bytes")


def test_tail_shows_the_calls_of_others_when_a_stream_is_odd_or_refused(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "RETRY_S", 0.01)

    def streaming(*events: object) -> Body:
        """Send these events to the first request, and refuse the others."""
        waiting = [
            b"HTTP/1.0 200 OK\r\n\r\n" + b"".join(b"data: %b\n\n" % json.dumps(each).encode() for each in events)
        ]
        refusal = b'HTTP/1.0 403 No\r\n\r\n{"error": "not you"}'
        return lambda request: (request.wfile.write(waiting.pop() if waiting else refusal), None)[1]

    events = {"odd": streaming([]), "refused": streaming(), "good": streaming(admin_values.call("9000"))}
    with contextlib.ExitStack() as stack:
        urls = [
            stack.enter_context(serving(honest(name) | {"/api/calls/stream": body})) for name, body in events.items()
        ]
        end = run("tail", *urls, "--json")
    shown = [(call["process"], call["id"]) for call in map(json.loads, end.out.splitlines())]
    assert shown.count(("good", "9000")) == 1
    assert len(shown) == len(set(shown)) == 10
    assert f"{urls[0]} is no admin endpoint of this version: invalid answer to GET /api/calls/stream" in end.err
    assert f"{urls[1]} answers 403 to GET /api/calls/stream: not you. Its calls are not shown." in end.err
    assert (end.code, "Error: " in end.err) == (1, True)


@pytest.mark.costly
def test_calls_are_selected_by_the_outcomes_that_are_shown(run: Run) -> None:
    asked = []

    def answer(request: BaseHTTPRequestHandler) -> None:
        asked.append(request.path)
        request.wfile.write(b"HTTP/1.0 200 OK\r\n\r\n[]")

    with serving(honest() | {"/api/calls": answer}) as url:
        for outcome in ("tool_error", "tool-error"):
            assert run("calls", url, "--outcome", outcome).out == "No call matches.\n"
        assert asked == ["/api/calls?outcome=tool_error&limit=30"] * 2
        for command in ("calls", "tail"):
            assert "did you mean 'timeout'?" in run.refused(command, url, "--outcome", "timeot")
            assert "use 'success', 'tool_error'," in run(command, url, "--outcome", "x").err
            assert "--slower-than inf is not a number of seconds" in run.refused(command, url, "--slower-than", "inf")


def test_no_answer_of_a_type_raises_anything_else() -> None:
    for body in ODD.values():
        for kind in (*ROWS.values(), api.Process, api.ToolDetails, api.CallDetails):
            with contextlib.suppress(ValueError):
                decode(body, kind)


@pytest.mark.parametrize(
    ("token", "fix"),
    [
        ([], "answers 401: give --token or DISPATCH_ADMIN_TOKEN, and name this URL"),
        (["--token", "wrong-token"], "answers 401: --token or DISPATCH_ADMIN_TOKEN has a wrong token"),
    ],
)
@pytest.mark.parametrize("command", ["top", "calls", "tail"])
def test_a_missing_or_wrong_token_is_told_with_the_option(run: Run, command: str, token: list[str], fix: str) -> None:
    def refuse(request: BaseHTTPRequestHandler) -> None:
        request.wfile.write(b'HTTP/1.0 401 No\r\n\r\n{"error": "Send Authorization: Bearer TOKEN."}')

    with serving({}, refuse) as url:
        end = run(command, url, *token)
    assert end.code == 1
    if command == "top":
        assert f"{url} {fix}" in end.out
    else:
        assert end.err == f"Error: {url} {fix}\n"
