"""A follower of one source: failures, recovery, backoff, changes that end or raise; on virtual time."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from dispatch.catalog.activation import MAX_PROBLEM_CHARS, SourceFollower, close_followers
from dispatch.catalog.descriptors import CatalogError
from dispatch.catalog.items import Item
from dispatch.catalog.sources import SourceState
from dispatch.documents import Problem
from dispatch.testing.clock import advance, idle, virtual_time
from tests.unit.catalog.live.test_merge import tool


class Scripted:
    """A source that fails, and announces changes, on request."""

    id = "desk"

    def __init__(self) -> None:
        self.failure: Exception | None = None
        self.attempts: list[float] = []
        self.announced: asyncio.Queue[object] = asyncio.Queue()
        self.iterations = 0
        self.closed = 0

    async def discover(self) -> Sequence[Item]:
        self.attempts.append(asyncio.get_running_loop().time())
        if self.failure is not None:
            raise self.failure
        return [tool()]

    async def changes(self) -> AsyncIterator[None]:
        self.iterations += 1
        while True:
            change = await self.announced.get()
            if isinstance(change, Exception):
                raise change
            if change == "end":
                return
            yield

    async def close(self) -> None:
        self.closed += 1


class Followed:
    """A follower with its states; ``problems`` are those for which the items are refused."""

    def __init__(self, source: Any = None) -> None:
        self.source = Scripted() if source is None else source
        self.states: list[tuple[SourceState, SourceState, str]] = []
        self.problems: list[Problem] = []
        self.follower = SourceFollower(self.source, self.accept, self.on_state, lambda: 0.5)

    async def accept(self, source: object, items: Sequence[Item]) -> Sequence[Problem]:
        return self.problems

    def on_state(self, follower: SourceFollower, former: SourceState) -> None:
        self.states.append((former, follower.state, follower.problem))

    async def __aenter__(self) -> Followed:
        self.follower.start()
        await idle()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.follower.close()

    def pauses(self) -> list[float]:
        times = self.source.attempts
        return [pytest.approx(later - one) for one, later in itertools.pairwise(times)]


@virtual_time
async def test_a_source_is_read_at_the_start_and_after_each_change() -> None:
    async with Followed() as followed:
        assert len(followed.source.attempts) == 1
        assert followed.states == [("failed", "ok", "")]
        assert followed.follower.is_ready.is_set()
        followed.source.announced.put_nowait(None)
        await advance(3_600)
        assert len(followed.source.attempts) == 2
    assert followed.source.closed == 1


@virtual_time
async def test_a_source_out_of_reach_is_tried_again_with_backoff() -> None:
    followed = Followed()
    followed.source.failure = ConnectionError("no answer")
    async with followed:
        await advance(200)
        assert followed.pauses()[:8] == [0.5, 1, 2, 4, 8, 16, 30, 30]
        assert followed.states == [("failed", "failed", "ConnectionError: no answer")]
        followed.source.failure = None
        await advance(30)
        assert followed.states[1:] == [("failed", "ok", "")]
        await advance(3_600)
        followed.source.failure = OSError()
        followed.source.attempts.clear()
        followed.source.announced.put_nowait(None)
        await advance(4)
        assert followed.pauses() == [0.5, 1, 2]
        assert followed.states[2:] == [("ok", "stale", "OSError")]
        assert isinstance(followed.follower.error, OSError)


@virtual_time
async def test_a_change_ends_the_wait_for_the_next_attempt() -> None:
    followed = Followed()
    followed.source.failure = ConnectionError("no answer")
    async with followed:
        await advance(20)
        followed.source.attempts.clear()
        followed.source.failure = None
        followed.source.announced.put_nowait(None)
        await advance(0)
        assert (len(followed.source.attempts), followed.follower.state) == (1, "ok")


@pytest.mark.parametrize("end", ["end", ConnectionError("lost")])
@virtual_time
async def test_a_source_whose_changes_are_over_is_followed_again(end: object) -> None:
    async with Followed() as followed:
        await advance(100)
        followed.source.announced.put_nowait(end)
        await advance(0.6)
        assert (followed.source.iterations, len(followed.source.attempts)) == (2, 2)
        assert followed.follower.state == "ok"
        followed.source.announced.put_nowait(None)
        await idle()
        assert len(followed.source.attempts) == 3
    stale = [] if end == "end" else [("ok", "stale", "ConnectionError: lost"), ("stale", "ok", "")]
    assert followed.states == [("failed", "ok", ""), *stale]


class Endless(Scripted):
    """A source whose changes are over at once."""

    async def changes(self) -> AsyncIterator[None]:
        self.iterations += 1
        for _ in ():
            yield


@virtual_time
async def test_a_source_without_changes_is_read_more_and_more_seldom() -> None:
    async with Followed(Endless()) as followed:
        await advance(180)
        assert followed.pauses()[:8] == [0.5, 1, 2, 4, 8, 16, 30, 30]


class Unfit(Scripted):
    """A source whose ``changes`` raises."""

    def changes(self) -> AsyncIterator[None]:
        raise NotImplementedError("later")


@virtual_time
async def test_a_source_that_cannot_be_followed_is_reported() -> None:
    async with Followed(Unfit()) as followed:
        assert followed.follower.is_ready.is_set()
        assert followed.states == [("failed", "failed", "NotImplementedError: later")]


@virtual_time
async def test_refused_items_are_a_failure_with_their_first_problem() -> None:
    followed = Followed()
    followed.problems = [
        Problem("tool/a", "name", "it is odd", "rename it", "warning"),
        Problem("tool/b", "name", "it is bad", "rename it"),
        Problem("tool/c", "name", "it is bad", "rename it"),
    ]
    async with followed:
        ((_, state, problem),) = followed.states
        assert state == "failed"
        assert problem.startswith("tool/b")
        assert problem.endswith("(and 1 more)")
        assert isinstance(followed.follower.error, CatalogError)


@virtual_time
async def test_a_long_problem_is_cut() -> None:
    followed = Followed()
    followed.source.failure = OSError("x" * 10_000)
    async with followed:
        assert len(followed.follower.problem) <= MAX_PROBLEM_CHARS


@virtual_time
async def test_a_source_that_cannot_be_closed_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    class Stuck(Scripted):
        def close(self) -> Any:
            raise OSError("still busy")

    first, second = Followed(Stuck()), Followed()
    for each in (first, second):
        each.follower.start()
    await idle()
    with caplog.at_level(logging.WARNING, "dispatch.catalog"):
        await close_followers([first.follower, second.follower])
    assert "the source 'desk' cannot be closed: OSError: still busy" in caplog.text
    assert second.source.closed == 1
