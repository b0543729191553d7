"""Stderr of a server in the log: whole lines, bounded in length and rate."""

from __future__ import annotations

import logging

import pytest

from dispatch.mcp.transports import LINES_PER_S, MAX_BURST, MAX_LINE_CHARS, StderrLog


class FakeClock:
    """A clock that a test advances."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def log(clock: FakeClock, caplog: pytest.LogCaptureFixture) -> StderrLog:
    caplog.set_level(logging.INFO, "dispatch.mcp")
    return StderrLog(logging.getLogger("dispatch.mcp"), "files", clock)


def test_lines_that_arrive_in_parts(log: StderrLog, caplog: pytest.LogCaptureFixture) -> None:
    for data in (b"one\ntw", b"o\r\n\n", b"thr\xffee"):
        log.feed(data)
    assert caplog.messages == ["files: one", "files: two"]
    log.close()
    assert caplog.messages[2:] == ["files: thr\ufffdee"]


def test_control_characters_do_not_reach_the_log(log: StderrLog, caplog: pytest.LogCaptureFixture) -> None:
    log.feed(b"\x1b[31mred\n")
    assert caplog.messages == ["files: \\x1b[31mred"]


def test_a_line_without_an_end_uses_bounded_memory(log: StderrLog, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(1_000):
        log.feed(b"x" * 100_000)
    log.feed(b"\n")
    (message,) = caplog.messages
    assert len(message) <= MAX_LINE_CHARS + len("files: ")


def test_a_burst_is_limited_and_counted(log: StderrLog, clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    log.feed(b"x\n" * 1_000)
    assert len(caplog.messages) == MAX_BURST
    clock.now += 1
    log.feed(b"y\n" * 100)
    assert caplog.messages[MAX_BURST] == f"files: … {1_000 - MAX_BURST} lines are left out"
    assert len(caplog.messages) == MAX_BURST + LINES_PER_S + 1
    log.close()
    assert caplog.messages[-1] == "files: … 80 lines are left out"
