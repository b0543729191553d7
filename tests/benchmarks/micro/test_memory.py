"""The memory benchmark finds retained memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.micro import otel_sdk
from benchmarks.micro.guard_stacks import Absent
from benchmarks.micro.memory import MAX_BLOCKS, MAX_RESIDENT, Reading, Retained, retained, table
from dispatch.calls import runtime
from dispatch.messaging.plain import Correlator

READING = Reading(64 * 2**20, 500_000, 110)
KEPT = Retained("calls of a tool", 1_000, READING, READING, 10)


@pytest.mark.wall_clock
async def test_nothing_stays_of_a_few_thousand() -> None:
    found = await retained(2_000, 500, filling=2_000, filling_names=50)
    assert {name: kept.count for name, kept in found.items()} == {"calls": 2_000, "names": 500}
    assert 0 < found["calls"].spans < 200, "a call in a hundred, of two spans"
    for kept in found.values():
        assert kept.after.series == kept.before.series > 0
    assert runtime.Correlator is Correlator, "as it was before"
    assert found["names"].before.series > found["calls"].before.series, "those of _OTHER"


@pytest.mark.wall_clock
async def test_a_series_for_each_name_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    from dispatch.telemetry.reporting import TelemetryDispatcherObserver

    on_unknown_tool = TelemetryDispatcherObserver.on_unknown_tool

    def leaking(self: TelemetryDispatcherObserver, name: str, error: object, now: float, user: str) -> None:
        self.observe_tool(name)
        on_unknown_tool(self, name, error, now, user)  # type: ignore[arg-type] # as it came

    monkeypatch.setattr(TelemetryDispatcherObserver, "on_unknown_tool", leaking)
    found = await retained(10, 50, filling=10, filling_names=1)
    assert not found["names"].flat
    assert "MISSED" in table(found)


@pytest.mark.parametrize(
    ("after", "flat"),
    [
        (replace(READING, resident=READING.resident + MAX_RESIDENT, blocks=READING.blocks + MAX_BLOCKS), True),  # type: ignore[operator] # known here
        (replace(READING, resident=READING.resident + MAX_RESIDENT + 1), False),  # type: ignore[operator] # likewise
        (replace(READING, resident=None), True),
        (replace(READING, blocks=READING.blocks + MAX_BLOCKS + 1), False),
        (replace(READING, series=111), False),
        (replace(READING, series=109), False),
    ],
)
def test_what_is_flat(after: Reading, flat: bool) -> None:
    kept = replace(KEPT, after=after)
    assert kept.flat is kept.as_dict()["flat"] is flat
    assert table({"calls": kept}).splitlines()[-1].split()[-1] == ("ok" if flat else "MISSED")


def test_without_the_sdk_it_cannot_be_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otel_sdk.importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(Absent, match="opentelemetry-sdk"):
        retained(1, 1).send(None)
