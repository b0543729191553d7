"""Figures of cases from records and journals, their table, and the declared incidents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from benchmarks.incidents.cases import Case, Event, Tool
from benchmarks.incidents.figures import RIGHT, Figure
from benchmarks.incidents.incidents import INCIDENTS
from benchmarks.incidents.outcomes import TIMED, Played, Record, by_second, figures_of
from benchmarks.incidents.report import report
from benchmarks.incidents.scenarios import ALL

TOOLS = (Tool("order"), Tool("lookup", is_repeatable=True), Tool("hanging", is_counted=False))
CASE = Case(
    "one dies", {"failed": 0.5, "twice": 0}, 2, TOOLS, events=(Event(1, "kill", 0), Event(2, "serve", 2)), over=0
)


def figures(records: Sequence[Record], journals: Mapping[int, Sequence[int]] | None = None) -> dict[str, Figure]:
    found = figures_of(CASE, Played(10.0, 11.0, records, journals or {}))
    return {figure.name.removeprefix("one dies: "): figure for figure in found}


def record(number: int, kind: str = RIGHT, tool: str = "order", **changes: float) -> Record:
    began = changes.get("began", 10.0)
    return Record(began, changes.get("ended", began + 0.1), kind, number, tool, kind in ("overloaded", "bulkhead-full"))


def test_journals_show_repeated_executions_and_untrue_errors() -> None:
    records = [
        record(1),
        record(2, tool="lookup"),
        record(3, "overloaded"),
        record(4, "instance-lost"),
        record(5, "lost"),
    ]
    found = figures(records, {0: [1, 2, 4], 1: [1, 2, 3, 5]})
    assert [found[name].value for name in ("twice", "repeated", "untrue")] == [1, 1, 1]
    assert not found["twice"].is_met
    # Call 4 was at the killed instance; the others' failures have no such cause.
    assert found["elsewhere"].value == 2
    assert found["busiest"].value == 4 / 7
    assert found["failures"].value == "overloaded 1, instance-lost 1, lost 1"


def test_calls_are_counted_from_the_first_success_after_the_incident_on() -> None:
    records = [record(1, "timeout", ended=14.0), record(2, "timeout", began=11.2), record(3, began=11.3, ended=11.5)]
    records += [record(4, "bulkhead-full", began=11.6), record(5, began=11.7, ended=13.0), record(6, "x", "hanging")]
    found = figures(records)
    assert found["calls"].value == 5
    assert found["failed"].value == 0.6
    assert found["failed"].wanted == "≤ 50 %"
    assert found["back"].value == pytest.approx(0.5)
    assert found["released"].value == 3.0
    assert found["from then on"].value == 0.5
    assert found["late"].value == 1.0
    assert found["bulkhead-full"].value == 1
    assert found["slowest"].value == 4.0
    assert figures([record(1, "timeout")])["back"].value is None


def test_a_value_beyond_its_limit_is_bold_in_the_table() -> None:
    found = figures_of(CASE, Played(10.0, 11.0, [record(1, "timeout")], {0: [1]}))
    head, line, row = report({"kill": "one dies"}, {"measured": {"kill": found}}, ["kill"]).splitlines()[2:]
    assert [cell.strip() for cell in head.split("|")][1:4] == ["", "wanted", "calls"]
    assert set(line) == {"|", "-", " "}
    assert "failed ≤ 50 %, twice 0" in row
    assert "**100 %**" in row
    both = {"before": {"kill": found}, "after": {"kill": figures_of(CASE, Played(10.0, 11.0, [record(1)], {0: [1]}))}}
    assert "**100 %** → 0 %" in report({"kill": "one dies"}, both, ["kill"])


def test_outcomes_are_listed_by_second() -> None:
    records = [record(1), record(2, "timeout", began=11.2), record(3, began=11.3)]
    assert by_second(CASE, Played(10.0, 11.0, records, {})) == ["   0 s  right 1", "   1 s  timeout 1, right 1"]


@pytest.mark.parametrize("incident", INCIDENTS, ids=lambda each: each.name)
def test_incidents_are_declared_soundly(incident: object) -> None:
    found = next(each for each in INCIDENTS if each is incident)
    assert found.name in {each.name for each in ALL}
    for cases in (found.cases, found.short):
        assert len({case.label for case in cases}) == len(cases)
        for case in cases:
            known = {figure.name.removeprefix(f"{case.label}: ") for figure in figures_of(case, Played(0, 0, [], {}))}
            assert set(case.limits) <= known
            assert known >= TIMED
            assert [event.at for event in case.events] == sorted(event.at for event in case.events)
            assert case.rate or case.calls
