"""The incidents: the load on the embedded transport, and the comparison of two checkouts."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import dispatch
from benchmarks.incidents import cli
from benchmarks.incidents.figures import RIGHT, WRONG, Figure, calls_of, share
from benchmarks.incidents.lab import Lab, queues, unique
from benchmarks.incidents.roles.caller import TOOL, dispatcher_of, reach
from benchmarks.incidents.roles.load import Load
from benchmarks.incidents.roles.service import Digest
from benchmarks.incidents.scenarios import ALL


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
