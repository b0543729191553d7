from __future__ import annotations

from prometheus_client import CollectorRegistry

from dispatch.errors import Outcome
from dispatch.telemetry.call_metrics import MAX_VERSIONS, BoundedSeries, Instruments, ToolKey, ToolMeter, VersionMeter
from dispatch.telemetry.observers import OTHER


class Series:
    """The series of one registry, read as a scrape reads them."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.tools = Instruments.of(self.registry).tools
        self.held: dict[str, ToolMeter] = {}

    def versions(self, tool: str) -> BoundedSeries[str, VersionMeter]:
        if tool not in self.held:
            self.held[tool] = self.tools.acquire(ToolKey(tool, OTHER if tool == OTHER else "lab"))
        return self.held[tool].versions

    def remove_tool(self, tool: str) -> None:
        self.tools.release(self.held.pop(tool).label, is_removed=True)

    def read(self) -> dict[tuple[str, str, str], float]:
        return {
            (each.labels["tool"], each.labels["version"], each.labels["outcome_class"]): each.value
            for family in self.registry.restricted_registry(["dispatch_version_calls_total"]).collect()
            for each in family.samples
        }

    def labels(self) -> set[tuple[str, str]]:
        return {key[:2] for key in self.read()}


def test_calls_are_counted_by_class_of_outcome() -> None:
    series = Series()
    meter = series.versions("joke").acquire("1.0.0")
    assert series.read() == {("joke", "1.0.0", each): 0 for each in ("ok", "error", "other")}
    for outcome in Outcome:
        meter.record_call(outcome)
    assert series.read() == {("joke", "1.0.0", "ok"): 1, ("joke", "1.0.0", "error"): 3, ("joke", "1.0.0", "other"): 4}


def test_further_versions_share_other() -> None:
    series = Series()
    meters = [series.versions("joke").acquire(f"{number}.0.0") for number in range(MAX_VERSIONS + 2)]
    assert [meter.label for meter in meters[MAX_VERSIONS:]] == [OTHER, OTHER]
    assert len(series.labels()) == MAX_VERSIONS + 1
    assert series.versions("find").acquire("9.0.0").label == "9.0.0", "four of each tool"
    series.versions("joke").release(meters[0].label, is_removed=True)
    assert series.versions("joke").acquire("9.0.0").label == "9.0.0"


def test_a_removed_version_ends_with_its_last_dispatcher() -> None:
    series = Series()
    one, other = (series.versions("joke").acquire("1.0.0") for _ in range(2))
    series.versions("joke").acquire("2.0.0")
    series.versions("joke").release(one.label, is_removed=True)
    assert ("joke", "1.0.0") in series.labels()
    series.versions("joke").release(other.label, is_removed=True)
    assert series.labels() == {("joke", "2.0.0")}


def test_the_series_of_a_closed_dispatcher_stay() -> None:
    series = Series()
    meter = series.versions("joke").acquire("1.0.0")
    meter.record_call(Outcome.SUCCESS)
    series.versions("joke").release(meter.label, is_removed=False)
    assert series.read()["joke", "1.0.0", "ok"] == 1
    series.versions("joke").acquire("1.0.0").record_call(Outcome.SUCCESS)
    assert series.read()["joke", "1.0.0", "ok"] == 2


def test_the_series_of_all_versions_end_with_the_tool() -> None:
    series = Series()
    former = series.versions("joke")
    meters = [former.acquire(f"{number}.0.0") for number in range(MAX_VERSIONS + 1)]
    series.versions("find").acquire("1.0.0")
    series.remove_tool("joke")
    assert series.labels() == {("find", "1.0.0")}
    former.release(meters[0].label, is_removed=True)
    assert series.labels() == {("find", "1.0.0")}
    series.versions("joke").acquire(meters[1].label)
    former.release(meters[1].label, is_removed=True)
    assert series.labels() == {("find", "1.0.0"), ("joke", "1.0.0")}, "added again meanwhile"


def test_tools_without_series_of_their_own_have_one_for_all_versions() -> None:
    series = Series()
    assert {series.versions(OTHER).acquire(version).label for version in ("1.0.0", "2.0.0")} == {OTHER}
