"""Ctrl-C at any moment of a command's loop."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dispatch.cli.base import run_async


@pytest.fixture(autouse=True)
def handler_of_a_fresh_interpreter() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


class Work:
    """What a command does on its loop."""

    def __init__(self, during: Callable[[], None] = lambda: None) -> None:
        self.during = during
        self.began = self.cleaned = False

    async def __call__(self) -> str:
        self.began = True
        try:
            self.during()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        finally:
            self.cleaned = True
            await asyncio.sleep(0)
        return "done"


def test_it_runs_to_its_end() -> None:
    assert run_async(Work()()) == "done"


def test_a_failure_comes_through() -> None:
    async def fails() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        run_async(fails())


def test_a_cancellation_of_its_own_is_no_ctrl_c() -> None:
    async def gives_up() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        run_async(gives_up())


def test_ctrl_c_while_it_works() -> None:
    work = Work(ctrl_c)
    with pytest.raises(KeyboardInterrupt):
        run_async(work())
    assert work.cleaned


def test_ctrl_c_while_the_loop_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """asyncio.run throws half a loop away here, which complains on stderr, and ``main`` was never awaited."""
    make = asyncio.new_event_loop

    def interrupted() -> Any:
        ctrl_c()
        return make()

    monkeypatch.setattr("asyncio.events.new_event_loop", interrupted)
    work = Work()
    with pytest.raises(KeyboardInterrupt):
        run_async(work())
    assert work.began
    assert work.cleaned


def test_ctrl_c_before_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """asyncio.run sets its count of interrupts to zero here, and a bare CancelledError comes out."""
    original = asyncio.BaseEventLoop.run_until_complete

    def interrupted(loop: Any, future: Any) -> Any:
        monkeypatch.undo()
        ctrl_c()
        return original(loop, future)

    monkeypatch.setattr("asyncio.BaseEventLoop.run_until_complete", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_async(Work()())


def test_ctrl_c_when_it_is_done_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    original = asyncio.BaseEventLoop.shutdown_asyncgens

    def interrupted(loop: Any) -> Any:
        ctrl_c()
        return original(loop)

    monkeypatch.setattr("asyncio.BaseEventLoop.shutdown_asyncgens", interrupted)
    assert run_async(Work()()) == "done"


def test_a_second_ctrl_c_does_not_wait() -> None:
    def twice() -> None:
        ctrl_c()
        ctrl_c()

    work = Work(twice)
    with pytest.raises(KeyboardInterrupt):
        run_async(work())
    assert work.cleaned


def test_where_it_is_ignored_it_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert run_async(Work(ctrl_c)()) == "done"
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
