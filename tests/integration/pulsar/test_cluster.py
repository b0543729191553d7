"""A cluster of brokers, some of which fail: ``make test-cluster``. Load and faults are those of benchmarks/cluster."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dispatch
from benchmarks.cluster.faults import SETTINGS, VICTIMS, Load, evaluate, loaded, measure, owners
from benchmarks.harness.broker import Endpoint, suspend
from benchmarks.harness.processes import ROOT
from benchmarks.suites.former_release import export_former_release
from dispatch.devtools.localbroker import ManagedProcess, cache_dir, fetch_distribution, find_free_ports, spawn
from dispatch.devtools.localcluster import LocalCluster
from tests.helpers.catalogs import catalog_of, unique_topic
from tests.helpers.echo_service import Echo

START_S = 5.0
"""Seconds until a dispatcher is connected, whatever the other brokers of its list do."""
FORMER = "bc9ccc47"
"""A commit of dispatch that speaks with this one."""


@pytest.mark.pulsar
@pytest.mark.parametrize(
    "url", ["{dead},{silent},{unknown},{live}", "{silent},{live},{unknown}", "{live},{dead},{silent}"]
)
async def test_the_broker_of_a_list_that_answers_is_used(url: str, pulsar_endpoint: Endpoint) -> None:
    (dead,) = find_free_ports(1)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts connections, and never replies
        hosts = url.format(
            dead=f"127.0.0.1:{dead}",
            silent=f"127.0.0.1:{silent.getsockname()[1]}",
            unknown="no-such-host.invalid:6650",
            live=pulsar_endpoint.service_url.removeprefix("pulsar://"),
        )
        topic = unique_topic()
        began = time.monotonic()
        async with (
            dispatch.ToolServer(Echo(), f"pulsar://{hosts}", service=topic),
            dispatch.connect(f"pulsar://{hosts}", catalog_of(topic)) as dispatcher,
        ):
            assert time.monotonic() - began < 2 * START_S
            assert (await dispatcher.execute("echo", {}, timeout=10)).ok


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster.start(settings=SETTINGS) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def load(cluster: LocalCluster) -> Iterator[Load]:
    with loaded(cluster.service_url) as load:
        yield load


@pytest.mark.soak
@pytest.mark.alone
@pytest.mark.parametrize("fault", ["none", *VICTIMS])  # the others depend on how fast a busy machine restarts brokers
def test_no_call_in_a_session_is_lost_and_none_runs_twice(fault: str, cluster: LocalCluster, load: Load) -> None:
    finding = measure(cluster, load, fault)
    assert finding.calls > 1_000
    assert (finding.lost, finding.twice_in_sessions) == (0, 0), finding
    assert finding.failed_share("session") <= 0.002, finding


@pytest.mark.soak
@pytest.mark.wall_clock
async def test_an_idle_service_is_in_reach_again_while_the_owner_of_its_topic_hangs(cluster: LocalCluster) -> None:
    """Its connections stay open, and it receives no requests. pulsar-client notices that after 30 to 60 s."""
    service = unique_topic()
    async with (
        dispatch.ToolServer(Echo(), cluster.service_url, service=service),
        dispatch.connect(cluster.service_url, catalog_of(service)) as dispatcher,
    ):
        assert (await dispatcher.execute("echo", {}, timeout=20)).ok
        owned = await asyncio.to_thread(owners, cluster)
        (number,) = (owner for topic, owner in owned.items() if "/dispatch-instance-" in topic and service in topic)
        process = cluster.process(cluster.broker(number))
        suspend(process)
        try:
            result = await dispatcher.execute("echo", {}, timeout=25)
        finally:
            process.send_signal(signal.SIGCONT)
        assert result.ok, result.error


@pytest.mark.soak
def test_a_former_version_and_this_one_speak_with_each_other(tmp_path: Path, pulsar_endpoint: Endpoint) -> None:
    former = export_former_release(ROOT, tmp_path, FORMER)
    assert former is not None, f"this clone has no commit {FORMER}: fetch its history"
    with loaded(pulsar_endpoint.service_url, [ROOT, former], [former, ROOT]) as load:
        load.begin()
        time.sleep(10.0)
        now = time.monotonic()
        finding = evaluate("none", load.end(), load.executions(), (now, now), {}, 1)
    assert finding.calls > 1_000
    assert (finding.failed, finding.failed_once, finding.twice) == ({}, {}, 0)


@pytest.mark.soak
def test_a_broker_that_ends_while_it_starts_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []

    def spawn_and_kill(command: list[str], **options: Any) -> ManagedProcess:
        child = spawn(command, **options)
        if command[-1] == "broker" and not ended:
            ended.append(child.pid)
            child.kill()
        return child

    monkeypatch.setattr("dispatch.devtools.localbroker.spawn", spawn_and_kill)
    with LocalCluster.start(brokers=1) as cluster:
        [broker] = cluster.brokers
        assert (len(ended), broker.pid in ended, cluster.is_ready(broker)) == (1, False, True)


@pytest.mark.soak
def test_the_cluster_of_a_killed_process_leaves_nothing_behind() -> None:
    program = (
        "import time; from dispatch.devtools.localcluster import LocalCluster; "
        "c = LocalCluster.start(brokers=1); print(c.folder, *(node.pid for node in c.nodes), flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        folder, *pids = owner.stdout.readline().split()
        owner.kill()
    end = time.monotonic() + 20
    while (left := [*filter(_runs, map(int, pids)), *_if_exists(Path(folder))]) and time.monotonic() < end:
        time.sleep(0.1)
    assert left == []


@pytest.mark.soak
def test_the_commands(tmp_path: Path) -> None:
    fetch_distribution()
    (tmp_path / "pulsar").symlink_to(cache_dir() / "pulsar")

    def run(*arguments: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "dispatch", "broker", "cluster", *arguments]
        environment = {**os.environ, "DISPATCH_CACHE": str(tmp_path), "PYTHONPATH": str(ROOT)}
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        return ended.returncode, ended.stdout + ended.stderr

    assert run("stop") == (1, "Error: no cluster is running: start one with dispatch broker cluster start\n")
    try:
        code, text = run("start", "--brokers", "2")
        assert (code, text.count("ready  pid")) == (0, 4)
        assert run("kill", "2")[0] == 0
        assert "broker 2     not running" in run("status")[1]
        assert "the cluster has no broker 3: use 1 to 2" in run("kill", "3")[1]
        assert run("restart", "2")[0] == 0
        assert run("unload", "tg/request") == (0, "Unloaded tg/request.\n")
    finally:
        code, _ = run("stop")
    assert code == 0
    assert sorted(path.name for path in (tmp_path / "cluster").iterdir()) == ["lock"]
    assert run("status")[0] == 1


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _if_exists(folder: Path) -> list[Path]:
    return [folder] if folder.exists() else []
