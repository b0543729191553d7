"""MCP servers with the replies of a test, as foreign servers write them: on stdin and stdout, and over HTTP."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

MODERN = "2026-07-28"

_STDIO = r"""
import json, sys
script = json.loads(sys.argv[1])
pages = 0
is_open = not script["before"]
def write(text):
    sys.stdout.buffer.write(text.encode("latin-1") + script["end"].encode())
    sys.stdout.buffer.flush()
for line in sys.stdin:
    message = json.loads(line)
    is_open = is_open or message.get("method") == script["hello"]
    if not is_open and script["before"] == "exit":
        sys.exit(1)
    if not is_open and script["before"] == "hang":
        sys.stdin.read()
    if is_open and "id" not in message and script["note"]:
        write(script["note"])
    if not is_open or "id" not in message:
        continue
    if "method" not in message:
        print("reply", line.strip(), file=sys.stderr, flush=True)
        continue
    method, id = message["method"], json.dumps(message["id"])
    if method == "tools/call":
        text = script["answers"][message["params"]["name"]]
    elif method == "tools/list":
        text = script["pages"][min(pages, len(script["pages"]) - 1)].replace("@PAGE@", str(pages))
        pages += 1
    elif method == script["hello"]:
        text = script["welcome"]
    else:
        text = '{"jsonrpc":"2.0","id":@ID@,"error":{"code":-32601,"message":"no such method"}}'
    rows = ",\n".join(['{\n"page": "secret-page",\n"text": "' + 40 * "x" + '"\n}'] * script["rows"])
    pings = 10000 * '{"jsonrpc":"2.0","id":"same","method":"ping"}\n'
    write(text.replace("@ID@", id).replace("@ROWS@", rows).replace("@PINGS@", pings))
    if method == "tools/call" and script["exits"]:
        sys.exit()
"""


def result(value: object) -> str:
    """A reply with a result, to the request ``@ID@``."""
    return json.dumps({"jsonrpc": "2.0", "id": 0, "result": value}).replace('"id": 0', '"id": @ID@', 1)


def tool(name: str, **others: Any) -> dict[str, Any]:
    """The definition of a tool."""
    return {"name": name, "inputSchema": {"type": "object"}, **others}


def _hello(is_modern: bool) -> tuple[str, str]:
    capabilities = {"tools": {}}
    if is_modern:
        return "server/discover", result({"supportedVersions": [MODERN], "capabilities": capabilities})
    info = {"name": "scripted", "version": "1"}
    return "initialize", result({"protocolVersion": "2025-06-18", "capabilities": capabilities, "serverInfo": info})


def scripted_stdio(
    answers: Mapping[str, str] = {},
    *,
    pages: Sequence[str] = (),
    is_modern: bool = False,
    welcome: Mapping[str, Any] = {},
    before: str = "",
    rows: int = 0,
    note: str = "",
    end: str = "\n",
    exits: bool = False,
    **keys: Any,
) -> dict[str, Any]:
    """The entry of a server on stdin and stdout.

    Args:
        answers: its tools, and what it writes for a call of each one, as Latin-1; ``@ID@`` is the id of the request, and
            ``@PINGS@`` are 10,000 requests of the server.
        pages: of its list of tools; the last one is repeated. ``@PAGE@`` is the number of pages before.
        welcome: in place of these parts of its answer to the handshake.
        before: what it does with a request before the handshake: ``exit``, ``hang`` or ``ignore``.
        note: what it writes for a notification.
        end: of each message.
        exits: it ends after its first answer to a call.
        rows: objects of five lines and 75 characters that an answer has in place of ``@ROWS@``.
        keys: of the entry.
    """
    hello, usual = _hello(is_modern)
    given = json.loads(usual.replace("@ID@", "0"))["result"]
    listed = pages or [result({"tools": [tool(name) for name in answers]})]
    script = {"answers": dict(answers), "pages": list(listed), "hello": hello, "before": before, "rows": rows}
    script |= {"note": note, "end": end, "exits": exits}
    script["welcome"] = result({**given, **welcome})
    return {"command": sys.executable, "args": ["-S", "-c", _STDIO, json.dumps(script)], **keys}


class Answer(NamedTuple):
    """A response, whose body may have ``@ID@``. ``is_open``: it has no end."""

    body: str = ""
    status: int = 200
    kind: str = "application/json"
    headers: Mapping[str, str] = {}
    is_open: bool = False


class ScriptedServer:
    """A server over HTTP in a thread.

    Args:
        answer: returns the response to a call of a tool; its arguments are the message and the headers.
        refuse: the response to a request in a session that the server does not know.
        tools: names.

    Attributes:
        sessions: that the server knows; a request without one is refused, except a handshake.
        requests: methods of all requests, in order.
        open: responses without an end that a client has not left.
        call: id of the last call.
        resumed: the response to a request that resumes a stream, and the ids of the last events in such requests.
    """

    def __init__(
        self,
        answer: Callable[[dict[str, Any], Mapping[str, str]], Answer],
        refuse: Answer | None,
        tools: Sequence[str],
        is_modern: bool,
        session: str,
    ) -> None:
        self.sessions: set[str] = set()
        self.requests: list[str] = []
        self.refuse = refuse
        self.refuse_all: Answer | None = None
        self.open = 0
        self.call: object = None
        self.resumed: tuple[Answer, list[str]] = Answer(status=405), []
        self.ping: Answer | None = None
        """The response to a ping in any session."""
        self._answer = answer
        self._tools = tools
        self._hello = _hello(is_modern)
        self._is_modern = is_modern
        self._count = 0
        self._session = session
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: object) -> None:
                pass

            def do_GET(self) -> None:
                answer, events = server.resumed
                event = self.headers["Last-Event-ID"]
                if event is not None:
                    events.append(event)
                self.respond(Answer(status=405) if event is None else answer, server.call)

            def do_DELETE(self) -> None:
                self.respond(Answer(status=200), None)

            def do_POST(self) -> None:
                message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self.respond(server.reply(message, self.headers), message.get("id"))

            def respond(self, answer: Answer, id: object) -> None:
                body = answer.body.replace("@ID@", json.dumps(id)).encode("latin-1")
                self.send_response(answer.status)
                if answer.body:
                    self.send_header("Content-Type", answer.kind)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                if not answer.is_open:
                    self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
                if answer.is_open:
                    server.open += 1
                    with suppress(ConnectionError):
                        self.rfile.read(1)  # until the client has left
                    server.open -= 1
                    self.close_connection = True

        class Server(ThreadingHTTPServer):
            request_queue_size = 128  # 5 lose connections of 20 calls at once, which the kernel repeats 1 s later

        self._http = Server(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/mcp"
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()

    def reply(self, message: dict[str, Any], headers: Mapping[str, str]) -> Answer:
        method, (hello, welcome) = message.get("method", "an answer"), self._hello
        self.requests.append(method)
        if self.refuse_all is not None:
            return self.refuse_all
        if method == "ping" and self.ping is not None:
            return self.ping
        if method == hello:
            self._count += 1
            session = f"{self._session}-{self._count}"
            self.sessions.add(session)
            return Answer(
                welcome, headers={} if self._is_modern or self.refuse is None else {"Mcp-Session-Id": session}
            )
        if method in ("server/discover", "initialize"):
            return Answer('{"jsonrpc":"2.0","id":@ID@,"error":{"code":-32601,"message":"no such method"}}')
        if self.refuse is not None and headers.get("Mcp-Session-Id") not in self.sessions:
            return self.refuse
        if "id" not in message or "method" not in message:
            return Answer(status=202)
        if method == "tools/list":
            return Answer(result({"tools": [tool(name) for name in self._tools]}))
        if method != "tools/call":
            return Answer(result({}))
        self.call = message["id"]
        return self._answer(message, headers)

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


@contextmanager
def scripted_http(
    answer: Callable[[dict[str, Any], Mapping[str, str]], Answer] | Answer,
    *,
    refuse: Answer | None = None,
    tools: Sequence[str] = ("work",),
    is_modern: bool = False,
    session: str = "session",
) -> Iterator[ScriptedServer]:
    """A running server; ``answer``: the response to calls, or what returns it. ``refuse``: it has sessions, whose ids begin
    with ``session``."""
    server = ScriptedServer(answer if callable(answer) else lambda *_: answer, refuse, tools, is_modern, session)
    try:
        yield server
    finally:
        server.close()


def event(*data: str) -> Answer:
    """A response that is a stream of events with the texts in ``data``."""
    return Answer("".join(f"event: message\ndata: {each}\n\n" for each in data), kind="text/event-stream")
