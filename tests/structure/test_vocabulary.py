"""Private words are found in prose, and nowhere else."""

from __future__ import annotations

import pytest

from structure.vocabulary import VOCABULARY, count_by_package, find_words


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('"""Nobody waits for it."""', [("nobody", 1)]),
        ("x = 1  # for whoever asks", [("whoever", 1)]),
        ('x = f"left alone: {y}"', [("left alone", 1)]),
        ('"""The pool.\n\nWhat is here stays. Its lanes too."""', [("What …", 3), ("lane", 3)]),
        ('"""A background task in a classroom, forever."""', []),
        ('"""What is this? A question."""', []),
        ('"""``nobody`` is a name."""', []),
        ("nobody = lanes.room", []),
    ],
)
def test_words_in_python(source: str, found: list[tuple[str, int]]) -> None:
    assert [(hit.term, hit.line) for hit in find_words("dispatch/x.py", source)] == found


def test_words_in_markdown() -> None:
    source = "# What lanes are\n\nNobody reads `fleet.py`.\n\n```python\n# nobody\n```\n\n- A room of ours\n"
    found = [(hit.term, hit.line) for hit in find_words("docs/x.md", source)]
    assert found == [("lane", 1), ("nobody", 3), ("room", 9), ("of ours", 9)]


def test_counts_are_by_package() -> None:
    hits = find_words("dispatch/calls/x.py", '"Nobody can."') + find_words("docs/x.md", "Nobody, somebody.")
    assert count_by_package(hits) == {"dispatch/calls": {"nobody": 1}, "docs": {"nobody": 1, "somebody": 1}}


def test_every_term_finds_its_own_name() -> None:
    for term in VOCABULARY:
        example = term.name.replace("…", "is not")
        assert [hit.term for hit in find_words("x.md", f"{example} so")] == [term.name]
