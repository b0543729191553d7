"""Replies are counted for their service, too, as what they are: while they are waited for, and after."""

from __future__ import annotations

from collections import Counter

import pytest

from dispatch.messaging.request import Disposition, Tally
from dispatch.messaging.wire import Property
from tests.helpers.clock import advance
from tests.helpers.exchange_harness import Bench
from tests.helpers.fakes import reply
from tests.helpers.malformed_messages import AlteredMessage


class Place:
    def __init__(self, into: Counter[Disposition], which: Disposition) -> None:
        self._into = into
        self._which = which

    @property
    def value(self) -> float:
        return self._into[self._which]

    @value.setter
    def value(self, value: float) -> None:
        self._into[self._which] = int(value)


def tally(into: Counter[Disposition]) -> Tally:
    return Tally({each: Place(into, each) for each in Disposition})


async def test_what_comes_for_a_call_is_its_services_before_and_after_its_end() -> None:
    bench, counts = Bench(), Counter[Disposition]()
    id, task = await bench.ask(tally=tally(counts))
    bench.take(reply(id))
    await task
    bench.take(reply(id))
    late, timed_out = await bench.ask(limit=1.0, tally=tally(counts))
    await advance(1.0)
    await timed_out
    bench.take(reply(late))
    unreadable, _ = await bench.ask(tally=tally(counts))
    bench.take(AlteredMessage(b"{", {Property.ID: unreadable}))
    assert counts == {
        Disposition.MATCHED: 1,
        Disposition.DUPLICATE: 1,
        Disposition.LATE: 1,
        Disposition.MALFORMED: 1,
    }


async def test_so_is_what_comes_for_a_stream() -> None:
    bench, counts = Bench(), Counter[Disposition]()
    stream = bench.open(tally=tally(counts))
    id = stream.id
    bench.take(reply(id, "a", end=False, chunk=0))
    bench.take(reply(id, "a", end=False, chunk=0))
    bench.take(reply(id, "b", chunk=1))
    assert [chunk async for chunk in stream] == ["a", "b"]
    bench.take(reply(id, "b", chunk=1))
    assert counts == {Disposition.MATCHED: 2, Disposition.DUPLICATE: 2}


@pytest.mark.parametrize("id", ["nobody's", ""])
async def test_what_belongs_to_nobody_is_nobodys(id: str) -> None:
    strange, counts = Counter[Disposition](), Counter[Disposition]()
    bench = Bench(strange=tally(strange))
    known, task = await bench.ask(tally=tally(counts))
    was = bench.take(reply(id))
    assert strange == {was: 1}
    assert was is (Disposition.UNKNOWN if id else Disposition.MALFORMED)
    assert not counts
    bench.take(reply(known))
    await task
    assert strange == {was: 1}
