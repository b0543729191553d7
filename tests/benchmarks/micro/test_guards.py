"""The guard benchmark: dispatch runs with any set of installed libraries; missing ones are reported and skipped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.micro import guard_stacks, guards
from benchmarks.micro.guard_behaviours import BEHAVIOURS, Behaviour, Seen
from benchmarks.micro.guard_stacks import STACKS, Absent, Stack
from benchmarks.micro.guards import Figures, Ratio, main, report

OWN = ("bare", "chain", "chain-8", "call-off", "call", "permission", "rejected", "rejected-call")


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other library is installed."""

    def package(name: str) -> None:
        raise Absent(name.partition(".")[0])

    monkeypatch.setattr(guard_stacks, "package", package)
    monkeypatch.setattr("benchmarks.micro.guard_behaviours.package", package)
    monkeypatch.setattr("benchmarks.micro.guard_libraries.package", package)


@pytest.mark.usefixtures("alone")
def test_dispatch_is_measured_and_missing_packages_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "new" / "figures.json"
    assert main(["--rounds", "2", "--blocks", "1", "--no-behaviours", "--json", str(path)]) == 0
    written = json.loads(path.read_text())
    assert {name: len(costs) for name, costs in written["costs_us"].items()} == dict.fromkeys(OWN, 2)
    assert all(cost > 0 for costs in written["costs_us"].values() for cost in costs)
    assert written["ratios"] == {}, "no other library to compare with"
    (permission,) = written["differences_us"]
    assert (permission["over"], permission["limit"], len(permission["rounds"])) == ("permission", 1.0, 2)
    out = capsys.readouterr().out
    assert "pip install 'tool-dispatch[peers]'" in out
    assert "purgatory" in out
    assert "pyresilience" in out


@pytest.mark.parametrize("behaviour", BEHAVIOURS, ids=lambda behaviour: behaviour.name)
@pytest.mark.wall_clock
async def test_dispatch_behaves_as_expected(behaviour: Behaviour) -> None:
    seen = await behaviour.libraries["dispatch"]()
    assert seen.ok, (behaviour.title, seen.value)


@pytest.mark.usefixtures("alone")
async def test_every_other_contender_names_its_missing_package() -> None:
    for stack in STACKS:
        if stack.name not in OWN:
            with pytest.raises(Absent):
                async with stack.make():
                    raise AssertionError(f"{stack.name} needs no package?")


def test_ratios_are_formed_within_rounds_and_their_median_counts() -> None:
    figures = Figures(
        {"chain": {0: 1.0, 1: 4.0, 2: 3.0}, "by-hand": {0: 10.0, 1: 20.0, 2: 10.0}, "off": {0: 0.5, 1: 2.0}}
    )
    found = figures.ratio(Ratio("chain", "by-hand"))
    assert found is not None
    assert (found.median, found.min, found.max) == (0.2, 0.1, 0.3)
    less = figures.ratio(Ratio("chain", "by-hand", less="off"))
    assert less is not None
    assert (less.min, less.max) == pytest.approx((0.5 / 9.5, 2.0 / 18.0)), "rounds that have all three"
    assert figures.ratio(Ratio("chain", "hyx")) is None


def test_the_report_marks_missed_targets_and_bad_behaviour() -> None:
    stack = Stack("chain", "ours", STACKS[0].make)
    behaviour = Behaviour("herd", "A herd", "how many", {})
    figures = Figures(
        {"chain": {0: 2.0}, "by-hand": {0: 10.0}}, seen={"herd": {"ours": Seen(3, True), "its": Seen(200, False)}}
    )
    text = report(figures, [stack], [behaviour])
    assert "MISSED" in text
    assert ["ours", "3", "ok"] in [line.split() for line in text.splitlines()]
    assert ["its", "200", "BAD"] in [line.split() for line in text.splitlines()]
    figures.costs["by-hand"][0] = 100.0
    assert "MISSED" not in report(figures, [stack], [behaviour])


def test_an_unwritable_result_file_is_reported_before_measuring(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guards.asyncio, "run", lambda *_args: pytest.fail("it was measured"))
    (tmp_path / "file").touch()
    assert main(["--json", str(tmp_path / "file" / "figures.json")]) == 2
    assert "--json" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["0", "-1", "x"])
def test_numbers_are_checked(value: str) -> None:
    with pytest.raises(SystemExit):
        main(["--rounds", value])
