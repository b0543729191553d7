"""The stories find defects of the protocol: each of these changes fails one of a few stories."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import pytest

from dispatch.protocol.delivery import Path, Reassembly, SeenNumbers
from dispatch.protocol.frames import CANCEL
from dispatch.protocol.session import CalleeSession, CallerSession, Session
from tests.simulation.story import run_story

STORIES = 80
"""Enough for each defect; most need fewer than ten."""


class ForgetfulNumbers(SeenNumbers):
    def add(self, number: int) -> bool:
        super().add(number)
        return True


def _forget_lost(path: Path, ack: Any, now: float, lost: Any) -> bool:
    return _record_ack(path, ack, now, mock.Mock())


def _send_no_cancel(session: Session, *frame: Any) -> None:
    if frame[0] != CANCEL:
        _add_control(session, *frame)


def _deliver_unordered(session: CallerSession, frame: Any, events: Any, packet: Any, now: float) -> None:
    request = session.waiting.get(frame.number)
    if request is not None and frame.index > request.chunks:
        frame.index = request.chunks
    _on_chunk(session, frame, events, packet, now)


def _ignore(*_arguments: Any) -> None:
    pass


_record_ack = Path.record_ack
_add_control = Session._add_control
_on_chunk = CallerSession._on_chunk
_known_address: Callable[..., int] = lambda secret, id, nonce: id  # noqa: E731 - a stand-in for a function
MUTANTS: dict[str, Callable[[], list[AbstractContextManager[Any]]]] = {
    "requests are not deduplicated": lambda: [mock.patch("dispatch.protocol.session.SeenNumbers", ForgetfulNumbers)],
    "lost packets are not retransmitted": lambda: [mock.patch.object(Path, "record_ack", _forget_lost)],
    "withdrawn requests are not cancelled": lambda: [mock.patch.object(CallerSession, "_add_control", _send_no_cancel)],
    "requests that ran count as not run": lambda: [mock.patch.object(CallerSession, "_may_have_run", return_value=False)],
    "chunks are delivered as they arrive": lambda: [mock.patch.object(CallerSession, "_on_chunk", _deliver_unordered)],
    "fragments of ended requests are retained": lambda: [mock.patch.object(Reassembly, "drop", _ignore)],
    "expired requests run": lambda: [mock.patch.object(CallerSession, "_expire", _ignore)],
    "a draining instance accepts requests": lambda: [mock.patch.object(CalleeSession, "drain", _ignore)],
    "agents know the address of a session": lambda: [mock.patch("dispatch.protocol.frames.derive_address", _known_address)],
}  # fmt: skip


def _run_stories() -> None:
    for seed in range(STORIES):
        run_story(seed)


@pytest.mark.costly
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_story_finds(mutant: str) -> None:
    patches = MUTANTS[mutant]()
    for patch in patches:
        patch.start()
    try:
        with pytest.raises(AssertionError):
            _run_stories()
    finally:
        for patch in patches:
            patch.stop()
