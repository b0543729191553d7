from __future__ import annotations

from pathlib import Path

import pytest

from dispatch.devtools.localbroker import IMAGE, DockerBroker, LocalBrokerError
from dispatch.devtools.localbroker.launch import (
    build_run_command,
    is_container_running,
    is_engine_available,
    stop_container,
)
from tests.unit.devtools.localbroker.fakes import FakeRunner, docker_calls


def calls(docker: Path) -> list[str]:
    return [call.split()[0] for call in docker_calls(docker)]


def test_the_command_publishes_on_the_loopback_only_and_the_same_ports_inside() -> None:
    command = build_run_command("box", 16650, 18080)

    published = [command[index + 1] for index, word in enumerate(command) if word == "--publish"]
    assert published == ["127.0.0.1:16650:16650", "127.0.0.1:18080:18080"]
    assert "PULSAR_PREFIX_brokerServicePort=16650" in command
    assert "PULSAR_PREFIX_webServicePort=18080" in command
    assert command[:2] == ["docker", "run"]
    assert "--rm" in command
    assert command[command.index("--name") + 1] == "box"
    assert command[-4] == IMAGE == "apachepulsar/pulsar:4.0.6"
    assert "--volume" not in command


def test_kept_data_are_in_a_volume() -> None:
    command = build_run_command("box", 1, 2, volume="kept")

    assert command[command.index("--volume") + 1] == "kept:/pulsar/data"


@pytest.mark.parametrize(
    ("answer", "available"), [((0, "27.1", ""), True), ((1, "", "daemon?"), False), (FileNotFoundError(), False)]
)
def test_an_engine_is_there_if_it_answers(answer: tuple[int, str, str] | OSError, available: bool) -> None:
    assert is_engine_available(FakeRunner(docker_info=answer)) is available


def test_a_container_that_is_gone_needs_no_stopping() -> None:
    gone = FakeRunner(docker_stop=(1, "", "No such container"), docker_inspect=(1, "", "No such object"))
    stop_container("box", gone)
    assert not is_container_running("box", gone)

    stuck = FakeRunner(docker_stop=(1, "", "permission denied"), docker_inspect=(0, "true\n", ""))
    with pytest.raises(LocalBrokerError, match="permission denied; try: docker rm --force box"):
        stop_container("box", stuck)


def test_a_container_is_started_and_stopped(docker: Path) -> None:
    said: list[str] = []

    with DockerBroker.start(report=said.append) as broker:
        assert is_container_running(broker.name)
        assert broker.service_url.startswith("pulsar://127.0.0.1:")
    assert not is_container_running(broker.name)

    assert calls(docker)[:3] == ["image", "pull", "run"]
    assert any(IMAGE in line for line in said)
    broker.stop()  # again: nothing more happens


def test_a_detached_container_lives_on(docker: Path) -> None:
    broker = DockerBroker.start(name="box", volume="kept", detached=True)

    assert is_container_running("box")
    assert "rm" not in calls(docker)
    stop_container("box")
    assert not is_container_running("box")
    assert broker.name == "box"


def test_a_container_that_dies_is_reported_with_its_log_and_removed(docker: Path) -> None:
    (docker / "die").touch()

    with pytest.raises(LocalBrokerError, match="bookie is full"):
        DockerBroker.start()

    assert calls(docker)[-1] == "rm"


def test_a_refusal_is_quoted(docker: Path) -> None:
    (docker / "refuse").touch()

    with pytest.raises(LocalBrokerError, match="no space left"):
        DockerBroker.start()
