"""pulsar-client's own lines: never on the terminal, always through logging, and a step quieter."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from dispatch.transports.pulsar import client as logs

OUTAGE = """
import json, logging, os, sys, threading

class Keep(logging.Handler):
    def __init__(self):
        super().__init__(logging.DEBUG)
        self.kept = []
        self.come = threading.Event()
    def emit(self, record):
        self.kept.append((record.name, record.levelname, record.getMessage(), threading.current_thread().name))
        if record.levelno >= logging.INFO:
            self.come.set()

if CONFIGURED:
    keep = Keep()
    logging.getLogger("dispatch").setLevel(logging.DEBUG)
    logging.getLogger("dispatch").addHandler(keep)

import pulsar, socket
from dispatch.transports.pulsar import client as link
from dispatch.transports.base import Security

link.OPERATION_TIMEOUT_S = 1
with socket.socket() as taken:
    taken.bind(("127.0.0.1", 0))  # bound, but nobody listens
    client = link._client(f"pulsar://127.0.0.1:{taken.getsockname()[1]}", Security())
    other = link._client("pulsar://127.0.0.1:1", Security())  # a second one uses the same pipe
    try:
        client.create_producer("non-persistent://tg/request/x", send_timeout_millis=100)
    except pulsar.PulsarException as error:
        failed = type(error).__name__
    client.close()
    other.close()

if CONFIGURED:
    assert keep.come.wait(20)
    os.write(TOLD, json.dumps({"failed": failed, "kept": keep.kept}).encode())
"""


def outage(*, configured: bool) -> tuple[str, str, dict[str, object]]:
    """A process that looks for a broker where none is: its stdout, its stderr, and what its logging got."""
    reading, writing = os.pipe()
    script = f"CONFIGURED, TOLD = {configured}, {writing}\n{OUTAGE}"
    try:
        ended = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True, pass_fds=[writing]
        )
    finally:
        os.close(writing)
    with open(reading) as pipe:
        told = pipe.read()
    return ended.stdout, ended.stderr, json.loads(told) if told else {}


def test_a_client_without_a_broker_is_silent_on_the_terminal() -> None:
    stdout, stderr, _ = outage(configured=False)
    assert (stdout, stderr) == ("", "")


def test_its_lines_come_through_logging_when_that_is_configured() -> None:
    stdout, stderr, told = outage(configured=True)
    assert (stdout, stderr) == ("", "")
    assert told["failed"] in {"Timeout", "ConnectError"}
    kept = told["kept"]
    assert isinstance(kept, list)
    assert {name for name, *_ in kept} == {"dispatch.pulsar"}
    assert {thread for *_, thread in kept} == {"dispatch-pulsar-logs"}, "never from a thread of pulsar-client's"
    assert {level for _, level, *_ in kept} <= {"DEBUG", "INFO"}, "what goes wrong is a typed error already"
    assert any("127.0.0.1" in text for _, _, text, _ in kept)
    assert not any(text.startswith("20") for _, _, text, _ in kept), "logging has a time of its own"


@pytest.fixture
def logged() -> Iterator[list[tuple[int, str]]]:
    """What came through the logger, level and text."""
    kept: list[tuple[int, str]] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            kept.append((record.levelno, record.getMessage()))

    handler, level = Keep(), logs.logger.level
    logs.logger.addHandler(handler)
    logs.logger.setLevel(logging.DEBUG)
    yield kept
    logs.logger.removeHandler(handler)
    logs.logger.setLevel(level)


def forwarded(data: bytes) -> None:
    """What becomes of these bytes in the pipe."""
    reading, writing = os.pipe()

    def client() -> None:
        with open(writing, "wb") as pipe:
            pipe.write(data)  # waits for the reader when the pipe is full

    thread = threading.Thread(target=client)
    thread.start()
    logs._forward(reading)
    thread.join()


def test_each_level_is_a_step_quieter(logged: list[tuple[int, str]]) -> None:
    forwarded(
        b"2026-01-01 00:00:00.000 INFO  [140] ClientImpl:1 | said\n"
        b"2026-01-01 00:00:00.000 WARN  [140] ClientImpl:2 | warned\n"
        b"2026-01-01 00:00:00.000 ERROR [140] ClientImpl:3 | failed\n"
        b"2026-01-01 00:00:00.000 FATAL [140] ClientImpl:4 | died\n"
        b"2026-01-01 00:00:00.000 LOUD  [140] ClientImpl:5 | new\n"
    )
    assert logged == [
        (logging.DEBUG, "ClientImpl:1 | said"),
        (logging.DEBUG, "ClientImpl:2 | warned"),
        (logging.INFO, "ClientImpl:3 | failed"),
        (logging.ERROR, "ClientImpl:4 | died"),
        (logging.DEBUG, "ClientImpl:5 | new"),
    ]


@pytest.mark.parametrize("line", [b"", b"no level at all", b"%s %d %(name)s", b"\xff\xfe\x00"])
def test_a_line_of_another_shape_is_passed_on_as_it_is(logged: list[tuple[int, str]], line: bytes) -> None:
    forwarded(line + b"\n" + b"last line without an end")
    assert logged == [(logging.DEBUG, line.decode(errors="replace")), (logging.DEBUG, "last line without an end")]


def test_a_long_line_is_cut(logged: list[tuple[int, str]]) -> None:
    forwarded(b"x" * 100_000 + b"\nnext\n")
    assert [len(text) for _, text in logged] == [2_000, 4]


def test_all_clients_of_a_process_share_one_pipe() -> None:
    assert logs.client_logger() is logs.client_logger()


def test_where_there_is_no_pipe_to_be_had_by_name_errors_at_least_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    monkeypatch.setattr(os.path, "isdir", lambda path: False)
    monkeypatch.setattr(logs.pulsar, "ConsoleLogger", lambda level: made.append(level) or io.StringIO())
    assert isinstance(logs._open_pipe(), io.StringIO)
    assert made == [logs.pulsar.LoggerLevel.Error]
