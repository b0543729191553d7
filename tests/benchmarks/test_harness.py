"""Whole runs, tiny, on the genuine broker; the load in virtual time; tables, pictures and the page of the figures."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness import cli
from benchmarks.harness.broker import Endpoint
from benchmarks.harness.processes import ROOT
from benchmarks.harness.results import Measurement
from benchmarks.suites import docs_page
from benchmarks.suites.definitions import BESIDE, CLIENTS, FAN_IN, LOSSES, SUITES, SYSTEMS, TELEMETRY, TOPICS
from benchmarks.suites.target_ratios import FOR_THE_RECORD, TARGETS, Ratio
from benchmarks.workers.load import Load, measure
from dispatch.devtools.localbroker import ManagedProcess, process_identity
from tests.benchmarks.result_builders import measurement, results
from tests.helpers.cli_processes import ended, started
from tests.helpers.python_processes import running
from tests.helpers.run_profile import is_long_profile

MARK = "BENCHMARK_TEST_MARK"
MEASURED = (
    (CLIENTS, TOPICS, TELEMETRY, *LOSSES, BESIDE, FAN_IN)
    if is_long_profile()
    else (replace(CLIENTS, contenders=CLIENTS.contenders[:1]), TOPICS, LOSSES[0])
)
"""The suites whose runs are short: TrustGraph's service and a bare service with large replies lose calls, each waits for its
timeout, and a run takes minutes. The short profile has one suite of each kind: one shared service (with one contender), a
service for each contender, lost messages."""
FORMER = ("--before", str(ROOT))
"""This checkout instead of the release before, for a clone without history."""


@pytest.fixture
def broker(pulsar_endpoint: Endpoint) -> dict[str, str]:
    """The environment that names the broker of the tests."""
    found = {"PULSAR_URL": pulsar_endpoint.service_url, "PULSAR_ADMIN_URL": pulsar_endpoint.web_url}
    if pulsar_endpoint.token is not None:
        found["PULSAR_TOKEN"] = pulsar_endpoint.token
    return found


@pytest.mark.pulsar
@pytest.mark.long
def test_everything_once(broker: dict[str, str], pulsar_endpoint: Endpoint, tmp_path: Path) -> None:
    json_file, picture = tmp_path / "found.json", tmp_path / "found.png"
    code, out, err = ended(
        *("bench", "--rounds", "1", "--seconds", "0.1", "--json", str(json_file), "--png", str(picture)),
        *FORMER,
        *(part for suite in MEASURED for each in suite.contenders for part in ("--only", f"{suite.name}/{each.name}")),
        limit=240,
        **broker,
    )
    assert code == 0, err
    assert picture.read_bytes().startswith(b"\x89PNG")
    found = json.loads(json_file.read_text())
    cells = {(m["suite"], m["contender"], m["level"]): m for m in found["measurements"]}
    assert set(cells) == {(s.name, c.name, level) for s in MEASURED for c in s.contenders for level in s.levels}
    for cell, figures in cells.items():
        # Whether calls are lost at 256 in flight is for the benchmark to say; that answers came is for the test.
        # The bare pair beside large replies may lose all of its calls in a tenth of a second.
        assert figures["answered"] > 0 or cell[:2] == ("beside", "bare"), cell
        assert figures["calls"] == figures["answered"] + figures["lost"]
        assert (figures["repeated"] is not None) == cell[0].startswith("loss-")
        assert not figures["repeated"], cell
        if figures["p50_ms"] is not None:  # of those that began within its tenth of a second
            assert 0 < figures["p50_ms"] <= figures["p99_ms"], cell
    assert sum(figures["p50_ms"] is not None for figures in cells.values()) > 0.8 * len(cells)
    assert len(found["ratios"]) == len(TARGETS) + len(FOR_THE_RECORD)

    def is_measured(ratio: Ratio) -> bool:
        over, under = (cells.get((ratio.suite, name, ratio.level), {}) for name in (ratio.over, ratio.under))
        if over.get(ratio.figure) is None:
            return False
        # A figure a call is of those answered within its tenth of a second: there may be none.
        return ratio.under is None or bool(under.get(ratio.under_figure or ratio.figure))

    for one, ratio in zip(found["ratios"], [*TARGETS, *FOR_THE_RECORD], strict=True):
        assert (one["spread"] is not None) == is_measured(ratio), ratio
        assert (one["met"] is not None) == (ratio in TARGETS and is_measured(ratio)), ratio
    # 0: none of its calls began, and ended, in its tenth of a second.
    medians = [
        one["spread"]["median"]
        for one in found["ratios"]
        if one["spread"] is not None and one["ratio"]["figure"] not in ("lost", "repeated")
    ]
    assert sum(median > 0 for median in medians) > 0.5 * len(medians)
    assert found["broker"]["version"][0].isdigit()
    assert all(suite.title in out for suite in MEASURED)
    assert err.count("] round 1 · ") == len(cells)
    # The durable subscription of the persistent service has gone with it.
    admin = pulsar_endpoint.admin()
    for topic in admin.topics("tg/flow"):
        if "/bench-" in topic:
            assert admin.stats(topic)["subscriptions"] == {}, topic


def marked(mark: str) -> set[int]:
    """The processes that have the mark in their environment."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes():
                found.add(int(folder.name))
        except OSError:  # ended meanwhile, or another's
            continue
    return found


needs_proc = pytest.mark.skipif(not os.path.exists("/proc/self/environ"), reason="looks for processes in /proc")
LONG = ("--only", "clients/bare", "--only", "clients/trustgraph", "--rounds", "100", "--seconds", "0.05")
"""A run of minutes by its rounds: the broker is warmed up for 20 times the seconds, at full load."""


@needs_proc
@pytest.mark.pulsar
def test_ctrl_c_leaves_no_process_and_no_file(broker: dict[str, str], tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    with started("bench", *LONG, "--out", str(tmp_path), **broker, **{MARK: mark}) as program:
        program.err.wait_for("starting the clients and services of clients")
        while len(marked(mark)) < 2:  # itself and the driver at least; it says so before it starts it
            assert program.process.poll() is None, program.err.text()
            time.sleep(0.01)
        program.interrupt()
        assert program.wait() == 130, program.err.text()
    assert "Interrupted; nothing was written." in program.err.text()
    assert "Traceback" not in program.err.text()
    assert marked(mark) == set()
    assert list(tmp_path.iterdir()) == []


@needs_proc
@pytest.mark.pulsar
def test_a_driver_that_is_killed_takes_its_processes_with_it(
    broker: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = uuid.uuid4().hex
    for key, value in {**broker, MARK: mark}.items():
        monkeypatch.setenv(key, value)
    with running(
        *("-m", "benchmarks", "--only", "topics", "--rounds", "100", "--seconds", "0.05", "--out", str(tmp_path)),
        ready=" in flight: ",
    ) as program:
        children = [ManagedProcess(pid, process_identity(pid)) for pid in marked(mark) - {program.process.pid}]
        assert len(children) == 4
        program.end(signal.SIGKILL)
        try:
            assert all(child.wait(30) for child in children)
        finally:
            for child in children:
                child.kill()


class FakeDriver:
    """Instead of minutes of work."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        pass

    def run(self) -> Any:
        suites = (CLIENTS, *SYSTEMS[:2])
        cells = [(c.name, level, 1, s.name) for s in suites for c in s.contenders for level in s.levels]
        return results(
            *(measurement(*cell, calls_per_second=100.0 * cell[1], lost=cell[1] // 256) for cell in cells),
            suites=suites,
        )


@contextmanager
def no_broker(report: Any) -> Iterator[None]:
    yield None


def test_a_run_prints_its_tables_and_draws_its_pictures_and_the_page(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "provide_broker", no_broker)
    monkeypatch.setattr(cli, "Driver", FakeDriver)
    monkeypatch.setattr(cli, "export_former_release", lambda _repository, _folder: Path("/former"))
    file = tmp_path / "run.json"
    assert cli.main(["--out", str(tmp_path / "deep"), "--json", str(file)]) == 0
    assert "MISSED" in capsys.readouterr().out  # and is no failure
    assert all(drawn.read_bytes().startswith(b"\x89PNG") for drawn in (tmp_path / "deep").iterdir())
    for path in (docs_page.PAGE, docs_page.PICTURE):
        (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / docs_page.PAGE).write_text((ROOT / docs_page.PAGE).read_text())
    assert docs_page.main([str(file), "--root", str(tmp_path)]) == 0
    assert "| 10 kB, 64 | 6,400 (1.00 / 3.00) |" in (tmp_path / docs_page.PAGE).read_text()


def test_an_unknown_suite_is_reported_before_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--only", "klients"])
    assert ended.value.code == 2
    assert "there is no 'klients'; choose from: systems-120" in capsys.readouterr().err


async def test_figures_are_of_the_measurement_and_not_of_its_ramp() -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def call() -> str:
        # Four times as slow in the ramp: seen in the figures, it would change every one of them.
        await asyncio.sleep(0.04 if loop.time() - began < 0.5 else 0.01)
        return "right"

    found = await measure(Load(call, "right", TimeoutError), level=4, seconds=1.0, ramp=0.52)
    assert found["counted"] / found["seconds"] == pytest.approx(400, rel=0.02)
    assert found["p50_ms"] == pytest.approx(10)
    assert found["calls"] == found["answered"] == pytest.approx(4 * 13 + 400, abs=8)
    assert (found["lost"], found["errors"]) == (0, {})


async def test_an_open_load_does_not_wait_for_answers() -> None:
    async def call() -> str:
        await asyncio.sleep(0.5)
        return ""

    found = await measure(Load(call, "", TimeoutError), level=1_000, seconds=4.0, ramp=1.0, mode="open")
    assert found["counted"] / found["seconds"] == pytest.approx(1_000, rel=0.1)
    # Calls of one millisecond begin together: their wait counts.
    assert 500 < found["p50_ms"] <= 502


def test_each_ratio_is_of_something_that_is_measured() -> None:
    for ratio in (*TARGETS, *FOR_THE_RECORD):
        suite = next(suite for suite in SUITES if suite.name == ratio.suite)
        assert {ratio.over, ratio.under} - {None} <= {contender.name for contender in suite.contenders}
        assert ratio.level in suite.levels
        assert {ratio.figure, ratio.under_figure or ratio.figure} <= {field.name for field in fields(Measurement)}
