from __future__ import annotations

import pytest

from dispatch._internal import excerpt, find_near_names, join_alternatives, join_names

TOOLS = ("tell-joke", "tell-story", "calculate", "query-customers", "query-products")


@pytest.mark.parametrize(
    "name",
    ["Tell-Joke", "tell_joke", "TELL.JOKE", "tell joke", "tell--joke", "tell_-joke", "tell\tjoke", "tell\u00a0joke"],
)
def test_another_case_or_separator_is_the_best_match(name: str) -> None:
    assert find_near_names(name, ("tell-jokes", "tell-joke"))[0] == "tell-joke"


def test_another_spelling_is_found() -> None:
    assert find_near_names("tel-joke", TOOLS)[0] == "tell-joke"
    assert find_near_names("calcluate", TOOLS) == ("calculate",)


def test_nothing_is_near_to_something_else_altogether() -> None:
    assert find_near_names("send-email", TOOLS) == ()
    assert find_near_names("anything", ()) == ()


def test_all_names_that_differ_in_case_only_are_near() -> None:
    assert set(find_near_names("ping", ("PING", "Ping", "pong"), limit=2)) == {"PING", "Ping"}


def test_the_limit_holds() -> None:
    assert len(find_near_names("tool-0", [f"tool-{n}" for n in range(50)], limit=3)) == 3


def test_in_a_large_catalogue_near_names_are_still_found() -> None:
    many = [f"lookup-{n}-archive" for n in range(5_000)] + ["customer-report"]
    assert find_near_names("costumer-report", many)[0] == "customer-report"
    assert find_near_names("cutsomers", [*many, "customers"])[0] == "customers"


def test_a_name_without_end_is_compared_by_its_beginning() -> None:
    assert find_near_names("x" * 1_000_000, ("x" * 100,)) == ("x" * 100,)


def test_a_long_list_is_cut_and_counted() -> None:
    assert join_names(("a", "b")) == "a, b"
    assert join_names([f"t{n}" for n in range(1_025)], limit=2) == "t0, t1 and 1,023 more"


def test_alternatives_read_as_a_sentence() -> None:
    assert join_alternatives(("a",)) == "'a'"
    assert join_alternatives(("a", "b", "c")) == "'a', 'b' or 'c'"


def test_an_excerpt_is_short_and_harmless_to_a_terminal() -> None:
    assert excerpt("schön") == "schön"
    assert excerpt("x" * 100, 10) == "x" * 9 + "…"
    assert excerpt("a\x1b[31mb\n\ud800") == r"a\x1b[31mb\n\ud800"
