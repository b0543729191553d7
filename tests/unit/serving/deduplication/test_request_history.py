"""The ledger: nothing that was here begins a second time, whatever is forgotten, and nothing is kept for ever."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dispatch.serving.deduplication.request_history import MAX_ENTRY_BYTES, RequestHistory, RequestRecord

NAME = "0123456789abcdef"


def id_of(number: int, name: str = NAME) -> str:
    return f"{name}-{number:x}"


def done(
    ledger: RequestHistory, number: int, payload: bytes = b"answer", name: str = NAME, now: float = 0.0
) -> RequestRecord:
    entry = ledger.begin(id_of(number, name), now)
    ledger.record(entry, (payload, {"n": str(number)}), last=True)
    return entry


def test_what_ran_is_found_with_its_replies() -> None:
    ledger = RequestHistory()
    assert ledger.find(id_of(1), 0) is False
    entry = ledger.begin(id_of(1), 0)
    assert ledger.find(id_of(1), 0) is entry
    assert (entry.ended, entry.since(0)) == (False, [])
    for index in range(3):
        ledger.record(entry, (b"%d" % index, {}), last=index == 2)
    assert entry.ended
    assert [payload for payload, _ in entry.since(1) or []] == [b"1", b"2"]
    assert [payload for payload, _ in entry.since(9) or []] == [b"2"], "an error at the end has no index"
    ledger.record(entry, (b"too late", {}), last=False)
    assert [payload for payload, _ in entry.since(0) or []] == [b"0", b"1", b"2"]


def large(ledger: RequestHistory, number: int, parts: int, *, most: int = 1 << 30, end: bool = True) -> RequestRecord:
    """An answer in parts of a mebibyte."""
    entry = ledger.begin(id_of(number), 0)
    for index in range(parts):
        ledger.widen(entry, 1 << 20, most)
        ledger.record(entry, (bytes(1 << 20), {}), last=end and index == parts - 1)
    return entry


def test_of_an_answer_in_parts_every_part_is_kept() -> None:
    ledger = RequestHistory()
    entry = large(ledger, 1, 30)
    assert entry.dropped == 0
    assert len(entry.since(0) or []) == 30
    assert ledger.size == 30 << 20


def test_one_answer_in_parts_costs_the_others_nothing() -> None:
    ledger = RequestHistory(max_bytes=1_000)
    small = [done(ledger, number) for number in range(1, 11)]
    running = large(ledger, 11, 20, end=False)
    done(ledger, 12)
    assert [ledger.find(id_of(number), 0) for number in range(1, 11)] == small
    ledger.end(running)
    done(ledger, 13)
    assert [ledger.find(id_of(number), 0) for number in range(1, 11)] == small


def test_answers_in_parts_are_bounded_and_the_last_one_is_kept_whatever_its_size() -> None:
    ledger = RequestHistory(max_large=20 << 20)
    first, second = large(ledger, 1, 12), large(ledger, 2, 12)
    assert ledger.find(id_of(1), 0) is True
    assert ledger.find(id_of(2), 0) is second
    assert first.since(0) is not None
    third = large(ledger, 3, 40)
    assert ledger.find(id_of(3), 0) is third
    assert ledger.size == 40 << 20
    ledger.settled(id_of(4), 4, 0)
    assert (len(ledger), ledger.size, ledger._large_size) == (0, 0, 0)


def test_no_more_is_kept_than_the_service_sends() -> None:
    ledger = RequestHistory()
    entry = large(ledger, 1, 40, most=10 << 20)
    assert entry.size == MAX_ENTRY_BYTES + (10 << 20)
    assert entry.since(0) is None


def test_what_never_ran_may_begin_again() -> None:
    ledger = RequestHistory()
    entry = ledger.begin(id_of(7), 0)
    ledger.undo(entry)
    assert ledger.find(id_of(7), 0) is False
    again = done(ledger, 7)
    ledger.undo(again)
    assert ledger.find(id_of(7), 0) is again, "it ran"
    assert ledger.find(id_of(6), 10_000) is False
    for number in range(100, 102):  # a dispatcher of which nothing runs is forgotten in the end
        ledger.find(id_of(1, f"{number:016x}"), 1e6)
    assert len(ledger) == 0


def test_what_nobody_waits_for_is_forgotten_and_stays_forbidden() -> None:
    ledger = RequestHistory()
    for number in range(1, 11):
        done(ledger, number)
    ledger.settled(id_of(11), 8, 0)
    assert len(ledger) == 3
    assert [ledger.find(id_of(number), 0) is True for number in (1, 7)] == [True, True]
    assert isinstance(ledger.find(id_of(8), 0), RequestRecord)
    assert ledger.find(id_of(11), 0) is False
    assert ledger.size == 3 * len(b"answer")


def test_what_runs_is_kept_until_it_has_ended() -> None:
    ledger = RequestHistory()
    entry = ledger.begin(id_of(1), 0)
    ledger.settled(id_of(5), 5, 0)
    assert ledger.find(id_of(1), 0) is entry
    ledger.record(entry, (b"x", {}), last=True)
    assert ledger.find(id_of(1), 0) is True
    assert (len(ledger), ledger.size) == (0, 0)


def test_a_word_about_later_ones_than_its_own_says_too_much() -> None:
    ledger = RequestHistory()
    done(ledger, 1)
    ledger.settled(id_of(1), 1_000_000, 0)
    assert isinstance(ledger.find(id_of(1), 0), RequestRecord)


def test_what_is_waited_for_longer_is_kept_without_all_that_came_since() -> None:
    ledger = RequestHistory()
    entries = {number: done(ledger, number) for number in range(1, 11) if number != 3}
    ledger.settled(id_of(11), 9, 0, (2, 3))
    assert len(ledger) == 3
    assert ledger.find(id_of(2), 0) is entries[2]
    assert ledger.find(id_of(3), 0) is False, "it never came, and is waited for"
    assert [ledger.find(id_of(number), 0) is True for number in (1, 4, 8)] == [True] * 3
    done(ledger, 3)
    assert isinstance(ledger.find(id_of(3), 0), RequestRecord)
    ledger.settled(id_of(12), 9, 0, (3,))
    assert ledger.find(id_of(2), 0) is True
    assert isinstance(ledger.find(id_of(3), 0), RequestRecord)
    ledger.settled(id_of(20), 11, 0)
    assert (len(ledger), ledger.size) == (0, 0)
    assert ledger.find(id_of(3), 0) is True


def test_what_was_settled_once_stays_so() -> None:
    ledger = RequestHistory()
    for number in range(1, 6):
        done(ledger, number)
    ledger.settled(id_of(9), 5, 0, (3,))
    for below, excepted in ((4, (1, 2, 3)), (5, (1, 2, 3)), (6, (1, 2, 3, 5))):
        ledger.settled(id_of(9), below, 0, excepted)
        assert [ledger.find(id_of(number), 0) is True for number in (1, 2, 4)] == [True] * 3
        assert isinstance(ledger.find(id_of(3), 0), RequestRecord)
    ledger.settled(id_of(9), 6, 0, (5,))
    ledger.settled(id_of(9), 6, 0, (3, 5))
    assert ledger.find(id_of(3), 0) is True
    assert isinstance(ledger.find(id_of(5), 0), RequestRecord)


def test_what_was_asked_for_again_is_not_the_next_to_go() -> None:
    ledger = RequestHistory(max_entries=3)
    for number in range(1, 4):
        done(ledger, number)
    assert isinstance(ledger.find(id_of(1), 0), RequestRecord)
    done(ledger, 4)
    assert isinstance(ledger.find(id_of(1), 0), RequestRecord)
    assert ledger.find(id_of(2), 0) is True


@pytest.mark.parametrize("bounds", [{"max_entries": 4}, {"max_bytes": 4 * 6}])
def test_the_oldest_ended_go_first_for_want_of_room(bounds: dict[str, int]) -> None:
    ledger = RequestHistory(**bounds)
    running = ledger.begin(id_of(1), 0)
    for number in range(2, 12):
        done(ledger, number)
    assert len(ledger) == 5
    assert ledger.find(id_of(1), 0) is running
    assert [ledger.find(id_of(number), 0) is True for number in range(2, 12)] == [True] * 6 + [False] * 4
    assert ledger.find(id_of(12), 0) is False


def test_a_long_stream_keeps_its_end() -> None:
    ledger = RequestHistory()
    entry = ledger.begin(id_of(1), 0)
    chunk = b"x" * (MAX_ENTRY_BYTES // 8)
    for _ in range(20):
        ledger.record(entry, (chunk, {}), last=False)
    assert entry.since(0) is None
    assert entry.since(11) is None
    assert len(entry.since(12) or []) == 8
    assert ledger.size == entry.size == MAX_ENTRY_BYTES


def test_dispatchers_that_are_silent_for_long_make_room() -> None:
    ledger = RequestHistory(max_peers=3, peer_age=600)
    done(ledger, 1, name="a")
    done(ledger, 1, name="b", now=1)
    assert ledger.find(id_of(1, "c"), 600) is False
    assert isinstance(ledger.find(id_of(1, "b"), 600), RequestRecord)
    assert (len(ledger), len(ledger._evicted)) == (1, 0)
    assert ledger.find(id_of(1, "a"), 600) is False


def test_the_dispatcher_that_was_idle_longest_makes_room_and_what_it_ran_stays_forbidden() -> None:
    ledger = RequestHistory(max_peers=2)
    for number, name in ((1, "a"), (1, "b"), (7, "a")):
        done(ledger, number, name=name)
    assert ledger.find(id_of(1, "c"), 1) is False
    assert isinstance(ledger.find(id_of(7, "a"), 1), RequestRecord), "b was idle longer"
    assert [ledger.find(id_of(number, "b"), 1) for number in (1, 2)] == [True, False]
    done(ledger, 9, name="b")
    assert ledger.find(id_of(8, "c"), 1) is False
    assert ledger.find(id_of(1, "d"), 1) is False
    for number, name, may_have_run in ((9, "b", True), (10, "b", False), (7, "a", True), (8, "a", False)):
        assert ledger.find(id_of(number, name), 2) is may_have_run, (name, number)


def test_a_dispatcher_whose_request_runs_makes_no_room_and_a_new_one_is_not_refused() -> None:
    ledger = RequestHistory(max_peers=2)
    entries = {name: ledger.begin(id_of(1, name), 0) for name in "abcd"}
    assert {name: ledger.find(id_of(1, name), 1) for name in "abcd"} == entries
    assert ledger.find(id_of(1, "e"), 1) is False
    for name in "abcd":
        ledger.record(entries[name], (b"x", {}), last=True)
    assert len(ledger._peers) == 2
    assert [ledger.find(id_of(1, name), 2) for name in "ab"] == [True, True]


def test_a_dispatcher_that_leaves_makes_room_and_what_it_ran_stays_forbidden() -> None:
    ledger = RequestHistory(max_peers=2)
    done(ledger, 3, name="a")
    done(ledger, 3, name="b")
    ledger.leave(id_of(9, "b"), 1)
    ledger.leave(id_of(9, "nobody"), 1)
    running = ledger.begin(id_of(1, "c"), 1)
    ledger.leave(id_of(2, "c"), 1)
    assert isinstance(ledger.find(id_of(3, "a"), 1), RequestRecord), "it was idle longest, and is still here"
    assert ledger.find(id_of(1, "c"), 1) is running
    assert [ledger.find(id_of(number, "b"), 1) for number in (3, 4)] == [True, False]


def test_of_evicted_dispatchers_so_many_are_remembered_and_beyond_them_no_retransmission_runs() -> None:
    ledger = RequestHistory(max_peers=1, peer_age=600)
    ledger._evicted.max_names = 4
    for index in range(20):
        done(ledger, 5, name=f"peer{index}", now=index)
        assert len(ledger._evicted) <= 4
    assert ledger.find(id_of(5, "peer0"), 20, is_again=True) is True
    assert ledger.find(id_of(5, "peer0"), 20, is_again=True) is True
    assert ledger.find(id_of(6, "peer0"), 20, is_again=True) is True, "it may have been its last one"
    assert ledger.find(id_of(7, "peer0"), 20) is False, "what is sent for the first time is new"
    assert ledger.find(id_of(8, "peer0"), 20, is_again=True) is False, "and so is what comes after it"
    assert ledger.find(id_of(8, "peer1"), 21) is False, "so is a first transmission"
    assert ledger.find(id_of(5, "peer1"), 21) is True
    assert ledger.find(id_of(5, "peer2"), 700, is_again=True) is False, "nothing is on its way for so long"


def test_evicted_dispatchers_are_forgotten_with_age() -> None:
    ledger = RequestHistory(max_peers=1, peer_age=600)
    done(ledger, 5, name="a", now=0)
    done(ledger, 5, name="b", now=599)
    done(ledger, 5, name="c", now=1_190)
    assert ledger.find(id_of(5, "b"), 1_190) is True
    ledger = RequestHistory(max_peers=1, peer_age=600)
    for index in range(10):
        done(ledger, 5, name=str(index), now=index * 1_200)
    assert len(ledger._evicted) == 0


def test_a_dispatcher_whose_request_runs_is_not_forgotten() -> None:
    ledger = RequestHistory(max_peers=2, peer_age=600)
    entry = ledger.begin(id_of(1, "a"), 0)
    done(ledger, 1, name="b")
    assert ledger.find(id_of(1, "c"), 10_000) is False
    assert ledger.find(id_of(1, "a"), 10_000) is entry


@pytest.mark.parametrize(
    ("id", "known"), [(id_of(1), True), ("1", False), ("-1", False), ("x-", False), ("x-y", False)]
)
def test_ids_of_ours_are_known_by_their_form(id: str, known: bool) -> None:
    assert RequestHistory.knows(id) is known


def test_a_strangers_id_may_look_like_one() -> None:
    """TrustGraph's ids are UUIDs: their last part is hexadecimal. What tells them apart is the property ``reply-to``."""
    assert RequestHistory.knows(str(uuid.uuid4()))


class Machine(RuleBasedStateMachine):
    """Requests come in any order, again and again; none may begin twice."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = RequestHistory(max_entries=5, max_bytes=40)
        self.begun: set[tuple[str, int]] = set()
        self.running: dict[tuple[str, int], RequestRecord] = {}
        self.now = 0.0

    @rule(name=st.sampled_from("ab"), number=st.integers(1, 30))
    def arrives(self, name: str, number: int) -> None:
        found = self.ledger.find(id_of(number, name), self.now)
        if found is False:
            assert (name, number) not in self.begun, "it would run twice"
            self.begun.add((name, number))
            self.running[name, number] = self.ledger.begin(id_of(number, name), self.now)
        elif (name, number) in self.running:
            assert found is self.running[name, number]

    @rule(which=st.integers(0, 99), size=st.integers(0, 20), last=st.booleans())
    def replies(self, which: int, size: int, last: bool) -> None:
        if not self.running:
            return
        key = sorted(self.running)[which % len(self.running)]
        self.ledger.record(self.running[key], (b"x" * size, {}), last=last)
        if last:
            del self.running[key]

    @rule(
        name=st.sampled_from("ab"),
        number=st.integers(1, 30),
        below=st.integers(0, 40),
        excepted=st.frozensets(st.integers(0, 40), max_size=5),
    )
    def settles(self, name: str, number: int, below: int, excepted: frozenset[int]) -> None:
        self.ledger.settled(id_of(number, name), below, self.now, excepted)

    @rule(seconds=st.floats(0, 100))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def its_size_is_what_it_holds(self) -> None:
        entries = [entry for peer in self.ledger._peers.values() for entry in peer.entries.values()]
        assert self.ledger.size == sum(len(payload) for entry in entries for payload, _ in entry.messages)
        assert sum(entry.ended for entry in entries) <= 5
        running = sum(len(payload) for entry in self.running.values() for payload, _ in entry.messages)
        assert self.ledger.size <= 40 + running


TestMachine = Machine.TestCase


class Evictions(RuleBasedStateMachine):
    """More dispatchers than are remembered. Each numbers its requests in the order in which they arrive first."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = RequestHistory(max_peers=2)
        self.ledger._evicted.max_names = 2
        self.sent = dict.fromkeys("abcdefgh", 0)
        self.begun: set[tuple[str, int]] = set()
        self.running: list[RequestRecord] = []

    @rule(name=st.sampled_from("abcdefgh"), lost=st.integers(0, 2))
    def arrives(self, name: str, lost: int) -> None:
        self.sent[name] += 1 + lost
        number = self.sent[name]
        assert self.ledger.find(id_of(number, name), 0) is False, "what is new is never refused"
        self.runs(name, number)

    @rule(name=st.sampled_from("abcdefgh"), back=st.integers(0, 9))
    def arrives_again(self, name: str, back: int) -> None:
        number = max(1, self.sent[name] - back)
        self.sent[name] = max(self.sent[name], number)
        if self.ledger.find(id_of(number, name), 0, is_again=True) is False:
            self.runs(name, number)

    def runs(self, name: str, number: int) -> None:
        assert (name, number) not in self.begun, "it would run twice"
        self.begun.add((name, number))
        self.running.append(self.ledger.begin(id_of(number, name), 0))

    @rule(which=st.integers(0, 99))
    def ends(self, which: int) -> None:
        if self.running:
            self.ledger.record(self.running.pop(which % len(self.running)), (b"x", {}), last=True)

    @rule(name=st.sampled_from("abcdefgh"))
    def leaves(self, name: str) -> None:
        self.ledger.leave(id_of(self.sent[name] + 1, name), 0)

    @invariant()
    def it_is_bounded(self) -> None:
        assert len(self.ledger._evicted) <= 2
        assert len(self.ledger._peers) <= 2 + len(self.running) + 1


TestEvictions = Evictions.TestCase
