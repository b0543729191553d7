"""The score of an edge from its evidence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.toolkit.evidence import ONE, PRIOR_STRENGTH, Evidence, Observation, compute_score

COUNTS = st.floats(0, 1e9)
SCORES = st.floats(0, 1)


def score_of(written: float, evidence: Evidence) -> float:
    return compute_score(written, evidence.success, evidence.weight)


@given(SCORES, st.builds(Evidence, COUNTS, COUNTS, COUNTS))
def test_a_score_is_in_0_to_1_and_starts_at_the_written_one(written: float, evidence: Evidence) -> None:
    assert 0 <= score_of(written, evidence) <= 1
    assert score_of(written, Evidence()) == pytest.approx(written, abs=1e-15)


@given(SCORES, st.builds(Evidence, COUNTS, COUNTS, COUNTS))
def test_a_success_never_lowers_a_score_and_the_others_never_raise_it(written: float, evidence: Evidence) -> None:
    score = score_of(written, evidence)
    assert score_of(written, evidence.add(ONE[Observation.SUCCESS])) >= score - 1e-12
    assert score_of(written, evidence.add(ONE[Observation.TOOL_ERROR])) <= score + 1e-12
    assert score_of(written, evidence.add(ONE[Observation.UNUSED])) <= score + 1e-12


def test_as_many_observations_as_the_prior_has_count_as_much_as_the_written_score() -> None:
    assert score_of(0.0, Evidence(success=PRIOR_STRENGTH)) == 0.5
    assert score_of(1.0, Evidence(tool_error=PRIOR_STRENGTH)) == 0.5


def test_a_tool_that_is_used_once_in_eleven_recommendations_approaches_the_default_threshold() -> None:
    assert score_of(0.9, Evidence(success=1e6, unused=1e7)) == pytest.approx(0.5, abs=1e-5)
    assert score_of(0.9, Evidence(success=1e6, unused=9e6)) > 0.5
    assert score_of(0.9, Evidence(success=1e6, unused=1.1e7)) < 0.5
