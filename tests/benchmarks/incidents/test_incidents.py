"""The incidents: their pure parts, the load on the embedded transport, and the command line without a broker."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import dispatch
from benchmarks.incidents import cli, forged_wire
from benchmarks.incidents.figures import (
    RIGHT,
    WRONG,
    Call,
    Figure,
    begun,
    calls_of,
    common_failures,
    first_right,
    median,
    share,
)
from benchmarks.incidents.forged_wire import FORGED, GENUINE, Names
from benchmarks.incidents.lab import Lab, queues, unique
from benchmarks.incidents.progress import Progress
from benchmarks.incidents.report import report, rows, shown
from benchmarks.incidents.roles.caller import TOOL, dispatcher_of, reach
from benchmarks.incidents.roles.forger import payload_of
from benchmarks.incidents.roles.load import Load
from benchmarks.incidents.roles.service import Digest
from benchmarks.incidents.scenarios import ALL, chosen
from benchmarks.incidents.scenarios.connects import signal_name
from benchmarks.incidents.scenarios.outages import figures_of

CALLS = calls_of([[0, 1, "timeout"], [2, 2.5, RIGHT], [3, 3.1, RIGHT], [4, 4.1, "circuit-open"], [5, 5.2, WRONG]])


def test_shares_and_times_are_of_the_calls_that_began_in_time() -> None:
    assert share(CALLS, RIGHT) == 0.4
    assert share(CALLS, RIGHT, "circuit-open") == 0.6
    assert share([], RIGHT) is None
    assert [call.began for call in begun(CALLS, 2, 4)] == [2, 3]
    assert first_right(CALLS, 2.2) == 3.1
    assert first_right(CALLS, 4) is None
    assert common_failures([*CALLS, Call(6, 7, "timeout")], most=2) == "timeout 2, circuit-open 1"
    assert common_failures(CALLS[1:3]) == "none"
    assert median([3, None, 1]) == 2
    assert median([None]) is None


def test_an_outage_after_which_nothing_succeeds_has_no_first_success() -> None:
    failing = [Call(number, number + 0.1, "circuit-open") for number in range(10)]
    found = {figure.name: figure.value for figure in figures_of("killed 5 s", failing, 0, 4, 5, "open", "open")}
    assert found["killed 5 s: broker back to first success"] is None
    assert found["killed 5 s: right from then on, 5 s"] == 0
    assert found["killed 5 s: failures from then on"] == "circuit-open 5"
    back = [*failing[:6], Call(6, 6.5, RIGHT), Call(7, 7.5, RIGHT), Call(8, 9, "timeout")]
    found = {figure.name: figure.value for figure in figures_of("killed 5 s", back, 0, 4, 5, "open", "closed")}
    assert found["killed 5 s: broker back to first success"] == 2.5
    assert found["killed 5 s: right from then on, 5 s"] == 0.5


def test_a_table_has_both_runs_side_by_side() -> None:
    before = [Figure("share", 0.1988, "%", "≤ 0.5 %"), Figure("gone", 3)]
    after = [Figure("share", 0.0, "%", "≤ 0.5 %"), Figure("new", 1.5, "s")]
    runs = {"before": {"kills": before}, "after": {"kills": after}}
    assert rows("kills", runs) == [
        ("share", "≤ 0.5 %", "19.88 %", "0 %"),
        ("gone", "", "3", "-"),
        ("new", "", "-", "1.50 s"),
    ]
    text = report({"kills": "one is killed", "burst": "not run"}, runs)
    assert text.startswith("kills: one is killed\n")
    assert "burst" not in text
    assert [shown(1_234), shown(None), shown(1.0, "%"), shown("closed")] == ["1,234", "-", "100 %", "closed"]
    assert len(shown("circuit-open 1,234, " * 9)) <= 44


def test_forged_messages_go_to_both_layouts_and_to_the_names_that_the_broker_lists() -> None:
    listed = ("non-persistent://tg/request/own-9-web-1", "non-persistent://tg/response/replies-of-agent-7")
    names = Names("search", "agent-7", listed)
    assert names.forged[-1] == "non-persistent://tg/request/own-9-bad-1"
    assert len(FORGED) == len(GENUINE)
    assert {topic.split("/")[3] for topic in names.announced} == {"request", "response"}
    assert listed[1] in names.replies
    announced = forged_wire.announcements(names, names.forged, FORGED, template={"proof": "x", "instance": "web-1"})
    assert {each["properties"]["control"] for each in announced} == set(names.forged)
    assert {each["topic"] for each in announced} == {*names.announced, *names.replies}
    assert {each["properties"]["instance"] for each in announced} == {"bad-1", "bad-1-1", "bad-1-2"}
    assert all(each["properties"]["proof"] == "x" for each in announced)
    later = forged_wire.later_life(names)
    assert {each["properties"]["instance"] for each in later} == {GENUINE}
    assert len({each["properties"]["instance"] for each in forged_wire.many(names, 300)}) == 300
    settled = forged_wire.settled(names, ["0a1b"])
    assert {each["topic"] for each in settled} == {names.request, *names.own}
    assert all(each["properties"]["id"].startswith("0a1b-") for each in settled)
    assert forged_wire.settled(names, []) == []
    packets = forged_wire.packets(names, [7])
    assert {each["topic"] for each in packets} == set(names.own)
    assert {forged_wire.read_address(payload_of(each)) for each in packets} == {7}
    assert forged_wire.read_address(b'{"response": "x"}') is None
    assert forged_wire.read_address(b"\x01") is None


async def test_the_load_tells_right_answers_from_forged_ones() -> None:
    topic = unique("load")
    spec: dict[str, Any] = {"url": f"memory://{topic}", **queues(topic)}

    class Forger(dispatch.ToolService):
        async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> str:
            return "forged"

    async with dispatcher_of(spec) as dispatcher:
        load = Load(lambda secret: dispatcher.execute(TOOL, {"secret": secret}, timeout=1), "secret-00-")
        server = {"request_queue": spec["request"], "response_queue": spec["response"]}
        async with dispatch.ToolServer(Digest(0.01), spec["url"], **server):
            assert await reach(load, 5) == {"kind": RIGHT}
            load.take()
            load.begin(50)
            await asyncio.sleep(2 - 0.001)
            await load.end()
            assert [call.kind for call in calls_of(load.take())] == [RIGHT] * 100
        async with dispatch.ToolServer(Forger(), spec["url"], **server):
            assert await load.call() == WRONG
        assert await load.call() == "no-instance"
        assert share(calls_of(load.take()), WRONG) == 0.5


def test_progress_goes_on_for_as_long_as_a_step_takes() -> None:
    lines: list[str] = []
    twice = threading.Event()

    def write(line: str) -> None:
        lines.append(line)
        if len(lines) == 3:
            twice.set()

    with Progress(write, every=0.01) as progress:
        progress.step("waiting", 30)
        assert twice.wait(30)
    assert lines[0] == "waiting (about 30 s)"
    assert all(line.endswith("s: waiting") for line in lines[1:])


def test_scenarios_are_chosen_by_name() -> None:
    assert chosen([]) == ALL
    assert [each.name for each in chosen(["burst", "connects"])] == ["connects", "burst"]
    with pytest.raises(ValueError, match="no scenario nothing; choose from: connects, restarts"):
        chosen(["nothing"])


def test_ends_of_processes_are_named() -> None:
    assert [signal_name(None), signal_name(-6), signal_name(3)] == ["no", "SIGABRT", "exit status 3"]


@pytest.fixture
def product(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Instead of a scenario on a broker: one that returns the length of the list of checkouts it was run with."""
    ran: list[Path] = []

    def run(lab: Lab) -> list[Figure]:
        ran.append(lab.product)
        return [Figure("runs", len(ran), "", "1")]

    monkeypatch.setattr(cli, "chosen", lambda _names: (replace(ALL[0], run=run),))
    return ran


def checkout(folder: Path) -> Path:
    (folder / "dispatch").mkdir(parents=True)
    (folder / "dispatch" / "__init__.py").touch()
    return folder


def test_two_checkouts_and_an_earlier_file_are_compared(
    product: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = checkout(tmp_path / "old"), checkout(tmp_path / "new")
    assert cli.main(["--code", str(new), "--against", str(old), "--json", str(tmp_path / "both.json")]) == 0
    assert product == [old, new]
    assert capsys.readouterr().out.splitlines()[-1].split() == ["runs", "1", "1", "2"]
    written = json.loads((tmp_path / "both.json").read_text())
    assert list(written["runs"]) == ["before", "after"]
    assert cli.main(["--code", str(new), "--against", str(tmp_path / "both.json")]) == 0
    assert product == [old, new, new]
    assert capsys.readouterr().out.splitlines()[-1].split() == ["runs", "1", "2", "3"]
    assert cli.main(["--code", str(old)]) == 0
    assert capsys.readouterr().out.splitlines()[2].split() == ["wanted", "measured"]


@pytest.mark.usefixtures("product")
@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--code", "{empty}"], "is no checkout"),
        (["--against", "{empty}"], "is no checkout"),
        (["--against", "{file}"], "holds no figures"),
        (["--json", "{empty}/none/file"], "No such file"),
    ],
)
def test_what_cannot_begin_says_why(
    arguments: list[str], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("[]")
    with pytest.raises(SystemExit) as ended:
        cli.main([each.format(empty=tmp_path, file=tmp_path / "file") for each in arguments])
    assert ended.value.code == 2
    assert problem in capsys.readouterr().err


def test_ctrl_c_and_failures_have_exit_codes_of_their_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(error: BaseException) -> int:
        def run(_lab: Lab) -> list[Figure]:
            raise error

        monkeypatch.setattr(cli, "chosen", lambda _names: (replace(ALL[0], run=run),))
        return cli.main(["--json", str(tmp_path / "figures.json")])

    assert failing(KeyboardInterrupt()) == 130
    assert not (tmp_path / "figures.json").exists()
    assert failing(cli.LocalBrokerUnavailableError(["Java is not installed"], "Install it.")) == 2
    assert failing(cli.BenchmarkError("caller ended early")) == 1
    assert "connects (measured): failed: caller ended early" in capsys.readouterr().err


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    out = capsys.readouterr().out
    assert all(f"  {each.name} " in out for each in ALL)
    assert "--against ../released" in out
