from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from dispatch.devtools.localbroker import Admin, LocalBrokerError
from dispatch.devtools.localbroker.launch import extract_errors, read_tail, wait_until_ready
from tests.unit.devtools.localbroker.fakes import AdminStandIn


class ReadyAfter(Admin):
    """An admin interface that answers at the n-th look."""

    def __init__(self, looks: int) -> None:
        super().__init__("http://127.0.0.1:1")
        self.looks = looks

    def is_ready(self) -> bool:
        self.looks -= 1
        return self.looks < 0


def still_there(_seconds: float) -> bool:
    return False


def test_it_returns_once_the_broker_answers(admin_stand_in: AdminStandIn) -> None:
    assert wait_until_ready(Admin(admin_stand_in.url), still_there, logs=[]) < 10


def test_it_looks_again_until_then() -> None:
    admin = ReadyAfter(looks=3)

    wait_until_ready(admin, still_there, logs=[])

    assert admin.looks == -1


def test_a_broker_that_ends_is_reported_with_what_it_said(tmp_path: Path) -> None:
    log = tmp_path / "broker.log"
    log.write_text("x INFO fine\nx ERROR no space left\nx INFO closing\n")

    with pytest.raises(LocalBrokerError, match="ended during its start") as caught:
        wait_until_ready(ReadyAfter(looks=9), lambda _seconds: True, logs=[log, tmp_path / "missing"])

    assert "no space left" in str(caught.value)
    assert "closing" not in str(caught.value)


def test_a_broker_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(LocalBrokerError, match=r"not ready within 0 s:\n\(no log output\)"):
        wait_until_ready(ReadyAfter(looks=10**9), still_there, logs=[tmp_path / "missing"], timeout=0)


def test_a_long_wait_is_reported() -> None:
    ticks = count()
    said: list[str] = []

    wait_until_ready(ReadyAfter(looks=12), still_there, logs=[], report=said.append, clock=lambda: float(next(ticks)))

    assert said == ["still starting: 5 s so far", "still starting: 10 s so far"]


def test_without_a_telling_line_the_last_ones_are_shown(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("\n".join(f"line {number}" for number in range(100)))

    shown = extract_errors([log])

    assert "line 99" in shown
    assert "line 88" in shown
    assert "line 87" not in shown


def test_only_the_end_of_a_large_log_is_read(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"x" * 1_000_000 + b"\nthe end\n")

    lines = read_tail(log)

    assert lines[-1] == "the end"
    assert sum(map(len, lines)) < 70_000
