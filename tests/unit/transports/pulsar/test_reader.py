"""A reader's messages reach a listener, and its thread ends with it."""

from __future__ import annotations

import queue
import threading
import time
from typing import Any

import pulsar
import pytest

from dispatch.transports.pulsar import client
from dispatch.transports.pulsar.client import ListenedReader


class FakeReader:
    """Gives what ``arriving`` holds, or raises it."""

    def __init__(self, *arriving: Any) -> None:
        self.arriving: queue.Queue[Any] = queue.Queue()
        for each in arriving:
            self.arriving.put(each)
        self.closed = False
        self.close_error: Exception | None = None

    def read_next(self, timeout_millis: int) -> Any:
        try:
            next = self.arriving.get(timeout=timeout_millis / 1000)
        except queue.Empty:
            raise pulsar.Timeout from None
        if isinstance(next, Exception):
            raise next
        return next

    def is_connected(self) -> bool:
        return not self.closed

    def close(self) -> None:
        self.closed = True
        self.arriving.put(pulsar.AlreadyClosed())
        if self.close_error is not None:
            raise self.close_error


class Got:
    """A listener."""

    def __init__(self) -> None:
        self.messages: queue.Queue[tuple[Any, Any, int]] = queue.Queue()

    def __call__(self, reader: Any, message: Any) -> None:
        self.messages.put((reader, message, threading.get_ident()))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "POLL_S", 0.01)


def test_messages_come_in_order_on_a_thread_of_its_own() -> None:
    got, fake = Got(), FakeReader("one", "two")
    listened = ListenedReader(fake, got)
    first, second = (got.messages.get(timeout=10) for _ in range(2))
    assert (first[:2], second[:2]) == ((listened, "one"), (listened, "two"))
    assert first[2] == second[2] != threading.get_ident()
    listened.close()


@pytest.mark.parametrize(
    "error", [pulsar.Timeout(), pulsar.NotConnected(), pulsar.AlreadyClosed(), RuntimeError("odd")]
)
def test_reading_goes_on_after_an_error(error: Exception) -> None:
    got, fake = Got(), FakeReader(error, "after it")
    listened = ListenedReader(fake, got)
    assert got.messages.get(timeout=10)[1] == "after it"
    assert listened.is_connected()
    listened.close()


@pytest.mark.parametrize("error", [None, pulsar.AlreadyClosed()])
def test_closing_ends_the_thread(error: Exception | None) -> None:
    fake = FakeReader()
    fake.close_error = error
    listened = ListenedReader(fake, Got())
    assert listened.is_connected()
    if error is None:
        listened.close()
    else:
        with pytest.raises(pulsar.AlreadyClosed):
            listened.close()
    assert not listened.is_connected()
    assert not listened._thread.is_alive()


def test_a_thread_whose_listener_waits_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "END_S", 0.01)
    held, let_go = threading.Event(), threading.Event()

    def listener(_reader: Any, _message: Any) -> None:
        held.set()
        let_go.wait(10)

    listened = ListenedReader(FakeReader("one"), listener)
    assert held.wait(10)
    began = time.monotonic()
    listened.close()
    assert time.monotonic() - began < 5
    let_go.set()
    listened._thread.join(10)
    assert not listened._thread.is_alive()
