"""The incidents of instances as scenarios: each case is a row."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from benchmarks.incidents.cases import Case
from benchmarks.incidents.figures import Figure
from benchmarks.incidents.incidents import INCIDENTS, Incident
from benchmarks.incidents.lab import Lab
from benchmarks.incidents.outcomes import by_second, figures_of
from benchmarks.incidents.scenario import Scenario
from benchmarks.incidents.stage import Stage

AROUND_S = 3.0
"""Seconds that a case needs before and after its load."""


def run(lab: Lab, incident: Incident) -> Iterator[Figure]:
    """Play all cases."""
    with Stage(lab.product, lab.brokers.get().service_url) as stage:
        for case in incident.short if lab.short else incident.cases:
            yield from lab.attempt(f"{incident.name}: {case.label}", partial(play, lab, incident, stage, case))


def play(lab: Lab, incident: Incident, stage: Stage, case: Case) -> list[Figure]:
    """Play one case."""
    lab.progress.step(f"{incident.name}: {case.label}", case.seconds + AROUND_S)
    played = stage.play(case)
    for line in by_second(case, played):
        lab.progress.line(line)
    return figures_of(case, played)


def _seconds(cases: tuple[Case, ...]) -> float:
    return sum(case.seconds + AROUND_S for case in cases)


SCENARIOS = tuple(
    Scenario(
        each.name, each.title, partial(run, incident=each), _seconds(each.cases), _seconds(each.short), is_matrix=True
    )
    for each in INCIDENTS
)
