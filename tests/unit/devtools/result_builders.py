"""Runs and cells, by hand and by Hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from dispatch.devtools.lossprobe import Measurement, RunResult


def run(calls: int, lost: int = 0, rate: float = 100.0, **errors: int) -> RunResult:
    """With so many calls and lost ones, at ``rate`` answers a second."""
    answered = calls - lost - sum(errors.values())
    return RunResult(calls, lost, answered / rate, errors)


@st.composite
def runs(draw: st.DrawFn, most_lost: int = 1_000) -> RunResult:
    """Any."""
    calls = draw(st.integers(1, 1_000))
    lost = draw(st.integers(0, min(most_lost, calls - 1)))
    errors = draw(st.dictionaries(st.sampled_from(["MessageTooBig", "queue-full"]), st.integers(1, 3), max_size=2))
    if lost + sum(errors.values()) > calls:
        errors = {}
    return RunResult(calls, lost, draw(st.floats(0.001, 100)), errors)


@st.composite
def grids(
    draw: st.DrawFn, plain: st.SearchStrategy[RunResult | None], session: st.SearchStrategy[RunResult | None]
) -> list[Measurement]:
    """Cells of some sizes and numbers in flight, in the order they are measured."""
    sizes = draw(st.sets(st.sampled_from([120, 1_000, 10_000, 1_000_000]), min_size=1))
    in_flight = draw(st.sets(st.sampled_from([1, 16, 64]), min_size=1))
    return [Measurement(size, n, draw(plain), draw(session)) for size in sorted(sizes) for n in sorted(in_flight)]
