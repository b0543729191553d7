"""Incidents of instances in processes of their own, under the default policy: what the calls come to, and which executions
the instances' journals have. The whole suite: ``python -m benchmarks.incidents``.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.harness.broker import Endpoint
from benchmarks.harness.processes import ROOT
from benchmarks.incidents.cases import Case
from benchmarks.incidents.figures import RIGHT
from benchmarks.incidents.incidents import INCIDENTS
from benchmarks.incidents.outcomes import TIMED, by_second, figures_of
from benchmarks.incidents.stage import Stage

pytestmark = [pytest.mark.pulsar, pytest.mark.slow]
PLAYED = ("kill", "stop", "block", "gone", "late", "overloaded", "cold", "burst")
"""Those whose figures do not depend on how busy the machine is, and which take few seconds."""
LONG = ("stop", "block", "cold")
"""Those of them that exist in the long form only, as all but the first case of each: the others show the same."""
CASES = [
    pytest.param(
        case, id=f"{incident.name}: {case.label}", marks=[pytest.mark.soak] if number or incident.name in LONG else []
    )
    for incident in INCIDENTS
    if incident.name in PLAYED
    for number, case in enumerate(incident.short)
]


@pytest.fixture(scope="module")
def stage(pulsar_endpoint: Endpoint) -> Iterator[Stage]:
    with Stage(ROOT, pulsar_endpoint.service_url) as made:
        yield made


@pytest.mark.parametrize("case", CASES)
def test_an_incident_costs_no_more_calls_than_it_must(stage: Stage, case: Case) -> None:
    played = stage.play(case)
    figures = {tool.name: figures_of(case, played, tool.name) for tool in case.tools if tool.is_counted}
    checked = [
        (tool, figure)
        for tool, found in figures.items()
        for figure in found
        if figure.limit is not None and figure.name.rpartition(": ")[2] not in TIMED
    ]
    exceeded = [
        f"{tool}: {each.name.rpartition(': ')[2]} {each.value}, wanted {each.wanted}"
        for tool, each in checked
        if not each.is_met
    ]
    repeatable = {tool.name for tool in case.tools if tool.is_repeatable}
    exceeded += [
        f"{record.number} failed though it may be repeated: {record.kind}"
        for record in played.records
        if record.tool in repeatable and record.kind != RIGHT
    ]
    assert not exceeded, "\n".join([*exceeded[:20], *by_second(case, played)])
