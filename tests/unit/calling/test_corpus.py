"""Outputs of models in ten languages: the calls found are the calls meant."""

from __future__ import annotations

from collections import Counter

from benchmarks.calling.corpus import make_corpus
from dispatch.calling import parse
from tests.unit.calling.chunks import parse_in_chunks

CORPUS = make_corpus()


def test_the_corpus_has_200_different_outputs_in_ten_languages() -> None:
    assert len({case.text for case in CORPUS}) == len(CORPUS) >= 200
    assert set(Counter(case.language for case in CORPUS).values()) == {len(CORPUS) // 10}


def test_the_calls_found_are_the_calls_meant() -> None:
    for case in CORPUS:
        calls = parse(case.text)
        found = [(call.name, call.args) for call in calls if call.error is None and not call.truncated]
        assert found == case.calls, case.text
        assert sum(call.error is not None or call.truncated for call in calls) == case.unreadable, case.text
        assert any(call.truncated for call in calls) is case.truncated, case.text
        if not case.text.startswith("{"):
            assert parse_in_chunks(case.text, 7) == calls, case.text
