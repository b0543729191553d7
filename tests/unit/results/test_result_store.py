from __future__ import annotations

import itertools
import sys
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dispatch.errors import InvalidArgumentsError
from dispatch.results import ResultStore


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


SCRIPTS = st.text(
    st.sampled_from("aé中文اختبارहिन्दी한국어🙂👩‍👩‍👧‍👦🇳🇴\u0301\u200d\n\r\t \x00\u2028\ufeff𝒳")
    | st.characters(exclude_categories=["Cs"])
)


@given(SCRIPTS, st.integers(1, 7))
def test_page_by_page_gives_the_whole_result(text: str, limit: int) -> None:
    store = ResultStore()
    handle = store.add(text, "alice")
    assert handle is not None
    pages, offset = [], 0
    while True:
        page = store.read(handle, offset=offset, limit=limit, user="alice")
        pages.append(page.text)
        assert page.total == len(text)
        if page.next_offset is None:
            break
        offset = page.next_offset
    assert "".join(pages).encode() == text.encode()


def is_unknown(store: ResultStore, handle: Any, user: str) -> bool:
    try:
        store.read(handle, user=user)
    except InvalidArgumentsError as error:
        return error.type == "unknown-result"
    return False


def test_a_handle_belongs_to_its_user() -> None:
    store = ResultStore()
    handle = store.add("secret", "alice")
    assert handle is not None
    assert store.read(handle, user="alice").text == "secret"
    messages = set()
    for user, given_handle in (("bob", handle), ("", handle), ("alice", "guess"), ("alice", None), ("alice", ["x"])):
        with pytest.raises(InvalidArgumentsError) as raised:
            store.read(given_handle, user=user)  # type: ignore[arg-type]  # the handle of a model
        messages.add((raised.value.type, raised.value.message))
    assert len(messages) == 1  # another user's handle looks like any unknown one


def test_handles_cannot_be_guessed() -> None:
    store = ResultStore()
    handles = {store.add("x") for _ in range(1_000)}
    assert len(handles) == 1_000
    assert all(handle is not None and len(handle) >= 22 for handle in handles)  # 128 bits


def test_a_result_expires_after_an_hour() -> None:
    clock = Clock()
    store = ResultStore(clock=clock)
    handle = store.add("x")
    assert handle is not None
    clock.now += 3599.9
    assert store.read(handle).text == "x"
    clock.now += 0.1
    assert is_unknown(store, handle, "")
    assert (len(store), store.size) == (0, 0)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"offset": -1}, "offset"),
        ({"offset": 4}, "offset"),
        ({"offset": "1"}, "offset"),
        ({"offset": True}, "offset"),
        ({"offset": 1.0}, "offset"),
        ({"limit": 0}, "limit"),
        ({"limit": None}, "limit"),
    ],
)
def test_wrong_places(options: dict[str, Any], name: str) -> None:
    store = ResultStore()
    handle = store.add("abc")
    assert handle is not None
    with pytest.raises(InvalidArgumentsError, match=name):
        store.read(handle, **options)
    assert store.read(handle, offset=3).text == ""


def test_many_results_of_one_user_do_not_displace_the_few_of_another() -> None:
    size = sys.getsizeof("x" * 1_000) + 500
    store = ResultStore(max_bytes=10 * size)
    alice = store.add("a" * 1_000, "alice")
    assert alice is not None
    bobs = [store.add("b" * 1_000, "bob") for _ in range(50)]
    assert store.read(alice, user="alice").text == "a" * 1_000
    assert [is_unknown(store, each, "bob") for each in bobs] == [True] * 41 + [False] * 9
    assert store.add("c" * 1_000 * 20, "bob") is None  # never fits
    assert store.add("c" * 9_900, "carol") is not None  # in place of bob's, who has more memory
    assert store.read(alice, user="alice").text == "a" * 1_000


class StoreMachine(RuleBasedStateMachine):
    """The store against a plain list of what was added."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        numbers = itertools.count()
        self.store = ResultStore(max_bytes=20_000, clock=self.clock, new_handle=lambda: str(next(numbers)))
        self.added: dict[str, tuple[str, str, float]] = {}

    @rule(user=st.sampled_from("abc"), length=st.integers(0, 20_000))
    def add(self, user: str, length: int) -> None:
        text = user * length
        handle = self.store.add(text, user)
        if handle is not None:
            self.added[handle] = (user, text, self.clock.now + 3600)
            assert self.store.read(handle, limit=30_000, user=user).text == text

    @rule(seconds=st.floats(0, 4_000))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @invariant()
    def it_is_bounded_and_gives_back_what_was_added(self) -> None:
        found = 0
        for handle, (user, text, expires) in self.added.items():
            if not is_unknown(self.store, handle, user):
                found += 1
                assert expires > self.clock.now
                assert self.store.read(handle, limit=30_000, user=user).text == text
        assert found <= len(self.store)
        assert self.store.size <= 20_000
        assert (self.store.size == 0) == (len(self.store) == 0)


TestStore = StoreMachine.TestCase
