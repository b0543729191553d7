from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from dispatch.devtools import localbroker
from dispatch.devtools.localcluster import LocalCluster, Node, start_detached_cluster
from tests.unit.devtools.fakes import AdminStandIn, docker_calls, write_script

pytestmark = pytest.mark.process


@pytest.fixture
def folder(cache: Path) -> Path:
    folder = cache / "broker"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def process(tmp_path: Path) -> Iterator[localbroker.ManagedProcess]:
    """A process which may pass for a broker."""
    child = localbroker.spawn(["sleep", "600"], log=tmp_path / "log")
    yield child
    child.kill()


def remember(
    folder: Path, child: localbroker.ManagedProcess, web_url: str = "http://127.0.0.1:1", identity: str | None = None
) -> localbroker.DetachedBroker:
    state = localbroker.DetachedBroker(
        "process", "pulsar://127.0.0.1:1", web_url, str(folder), child.pid, identity or child.identity
    )
    (folder / "state.json").write_text(json.dumps(asdict(state)))
    return state


def test_without_a_broker_there_is_no_state(cache: Path) -> None:
    assert localbroker.status() is None
    assert localbroker.stop_detached() is None


def test_a_broker_that_runs_is_found(folder: Path, process: localbroker.ManagedProcess) -> None:
    state = remember(folder, process)

    assert localbroker.status() == state


def test_a_broker_that_died_is_forgotten(folder: Path, process: localbroker.ManagedProcess) -> None:
    remember(folder, process)
    process.kill()

    assert localbroker.status() is None


def test_another_process_of_the_same_id_is_neither_shown_nor_stopped(
    folder: Path, process: localbroker.ManagedProcess
) -> None:
    remember(folder, process, identity="an earlier boot:123")

    assert localbroker.stop_detached() is None
    assert process.is_alive()
    remember(folder, process, identity="an earlier boot:123")
    assert localbroker.status() is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"kind": "process"}', '{"of": "another version"}'])
def test_a_file_we_do_not_understand_is_no_broker(folder: Path, content: str) -> None:
    (folder / "state.json").write_text(content)

    assert localbroker.status() is None
    assert localbroker.stop_detached() is None


def test_stopping_ends_the_process_and_forgets_it(folder: Path, process: localbroker.ManagedProcess) -> None:
    state = remember(folder, process)
    said: list[str] = []

    assert localbroker.stop_detached(said.append) == state

    assert not process.is_alive()
    assert localbroker.status() is None
    assert said == ["stopping pulsar://127.0.0.1:1"]


def test_starting_again_returns_the_one_that_runs_prepared(
    folder: Path, process: localbroker.ManagedProcess, admin_stand_in: AdminStandIn
) -> None:
    state = remember(folder, process, admin_stand_in.url)
    said: list[str] = []

    assert localbroker.start_detached(said.append) == state

    assert admin_stand_in.tenants["tg"] == set(localbroker.DEFAULT_NAMESPACES)
    assert said == ["a broker is already running: pulsar://127.0.0.1:1"]


@pytest.mark.parametrize(("port", "web_port"), [(1, None), (0, 0)])
def test_the_ports_of_the_one_that_runs_and_any_free_one_are_its_own(
    folder: Path, process: localbroker.ManagedProcess, admin_stand_in: AdminStandIn, port: int, web_port: int | None
) -> None:
    state = remember(folder, process, admin_stand_in.url)

    assert localbroker.start_detached(port=port, web_port=web_port) == state


@pytest.mark.parametrize(("port", "web_port", "option"), [(7000, None, "--port 7000"), (None, 7001, "--web-port 7001")])
def test_another_port_than_that_of_the_one_that_runs_is_an_error(
    folder: Path, process: localbroker.ManagedProcess, port: int | None, web_port: int | None, option: str
) -> None:
    state = remember(folder, process)

    with pytest.raises(
        localbroker.LocalBrokerError,
        match=f"is already running at {state.service_url} .*{option}.*dispatch broker stop",
    ):
        localbroker.start_detached(port=port, web_port=web_port)


def test_the_data_of_a_running_broker_are_not_wiped(folder: Path, process: localbroker.ManagedProcess) -> None:
    remember(folder, process)

    with pytest.raises(localbroker.LocalBrokerError, match="stop it first with dispatch broker stop"):
        localbroker.start_detached(wipe=True)


@pytest.mark.parametrize("option", ["--port", "--web-port"])
def test_a_busy_port_names_the_option_that_helps(cache: Path, option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]

        problem = f"port {taken} .*choose another with {option} .0: any free port"
        with pytest.raises(localbroker.LocalBrokerError, match=problem):
            localbroker.start_detached(
                port=taken if option == "--port" else 0, web_port=taken if option == "--web-port" else 0
            )


def test_where_nothing_can_start_nothing_is_remembered(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing() -> str:
        raise localbroker.LocalBrokerUnavailableError(["Java is not installed"], "install it")

    monkeypatch.setattr(localbroker, "choose_launcher", nothing)

    with pytest.raises(localbroker.LocalBrokerUnavailableError, match="Java is not installed"):
        localbroker.start_detached(port=0, web_port=0)

    assert localbroker.status() is None


def test_a_container_is_started_found_and_stopped(cache: Path, docker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(localbroker, "choose_launcher", lambda: "docker")

    state = localbroker.start_detached(port=0, web_port=0, wipe=True)

    assert (state.kind, state.container, state.pid) == ("docker", "tool-dispatch-pulsar", None)
    assert localbroker.status() == localbroker.start_detached() == state
    assert set(localbroker.Admin(state.web_url).namespaces("tg")) == set(localbroker.DEFAULT_NAMESPACES)
    assert localbroker.stop_detached() == state
    assert localbroker.status() is None
    calls = docker_calls(docker)
    assert "volume rm --force tool-dispatch-pulsar" in calls
    assert sum(call.startswith("run ") for call in calls) == 1


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, localbroker.LocalBrokerError])
def test_an_interrupted_start_leaves_neither_process_nor_state(
    fake_distribution: Path, monkeypatch: pytest.MonkeyPatch, interruption: type[BaseException]
) -> None:
    pids: list[int] = []

    def interrupt(*_arguments: object, **_options: object) -> float:
        state = localbroker.status()
        assert state.is_alive()
        pids.append(state.pid or 0)
        raise interruption

    monkeypatch.setattr(localbroker, "choose_launcher", lambda: "process")
    monkeypatch.setattr(localbroker, "wait_until_ready", interrupt)
    write_script(fake_distribution, "exec sleep 600")

    with pytest.raises(interruption):
        localbroker.start_detached(port=0, web_port=0)

    assert localbroker.process_identity(pids[0]) is None
    assert not (localbroker.cache_dir() / "broker" / "state.json").exists()


def test_kept_data_that_may_be_damaged_can_be_wiped(fake_distribution: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(localbroker, "choose_launcher", lambda: "process")
    write_script(fake_distribution, 'echo "x ERROR cookie does not match"; exit 1')

    with pytest.raises(localbroker.LocalBrokerError, match="cookie does not match") as first:
        localbroker.start_detached(port=0, web_port=0)
    with pytest.raises(localbroker.LocalBrokerError, match="dispatch broker start --wipe"):
        localbroker.start_detached(port=0, web_port=0)
    with pytest.raises(localbroker.LocalBrokerError, match="cookie does not match") as wiped:
        localbroker.start_detached(port=0, web_port=0, wipe=True)

    assert "--wipe" not in str(first.value)
    assert "--wipe" not in str(wiped.value)


def test_a_full_disk_is_named(cache: Path, fake_distribution: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(localbroker, "choose_launcher", lambda: "process")
    folder = cache / "broker" / "data" / "conf"
    folder.mkdir(parents=True)
    (folder / "standalone.conf").symlink_to("/dev/full")

    problem = "data cannot be written: No space left on device; free space there"
    with pytest.raises(localbroker.LocalBrokerError, match=problem):
        localbroker.start_detached(port=0, web_port=0)

    assert localbroker.status() is None


@pytest.mark.parametrize("is_started", [False, True])
def test_what_a_killed_start_of_a_cluster_has_left_is_stopped(
    cache: Path, process: localbroker.ManagedProcess, monkeypatch: pytest.MonkeyPatch, is_started: bool
) -> None:
    nodes = [Node("zookeeper", 1, 1, pid=process.pid, identity=process.identity), Node("broker", 1, 2, 3)]
    (cache / "cluster").mkdir(parents=True)
    state = {"nodes": [*map(asdict, nodes)], "settings": {}, "is_started": is_started}
    localbroker.write_state(cache / "cluster" / "state.json", state)
    anew = LocalCluster(cache, [], detached=True, settings={})
    monkeypatch.setattr(LocalCluster, "start", lambda **_options: anew)

    cluster = start_detached_cluster(1)

    assert (cluster is anew) is not is_started
    assert process.is_alive() is is_started
