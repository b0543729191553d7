from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dispatch.devtools.localbroker import VERSION, LocalBrokerUnavailableError, choose_launcher
from tests.unit.devtools.localbroker.fakes import FakeRunner

JAVA_17 = (0, "", 'openjdk version "17.0.15"')
JAVA_11 = (0, "", 'openjdk version "11.0.2"')
ENGINE = (0, "27.1\n", "")
NO_ENGINE = (1, "", "Cannot connect to the Docker daemon")


def which(*installed: str) -> Callable[[str], str | None]:
    return lambda name: f"/usr/bin/{name}" if name in installed else None


def put_distribution(cache: Path) -> None:
    home = cache / "pulsar" / f"apache-pulsar-{VERSION}"
    for part in ("bin/pulsar", "conf/standalone.conf", "lib/pulsar.jar"):
        (home / part).parent.mkdir(parents=True, exist_ok=True)
        (home / part).touch()


def test_java_and_maven_are_enough_and_docker_is_not_even_asked(cache: Path) -> None:
    runner = FakeRunner(java=JAVA_17)

    assert choose_launcher(runner, which=which("java", "mvn", "docker"), environ={}) == "process"
    assert [command[0] for command in runner.commands] == ["/usr/bin/java"]


def test_a_cached_distribution_needs_no_maven(cache: Path) -> None:
    put_distribution(cache)

    assert choose_launcher(FakeRunner(java=JAVA_17), which=which("java"), environ={}) == "process"


@pytest.mark.parametrize("java", [JAVA_17, JAVA_11])
def test_docker_where_maven_or_a_usable_java_is_missing(cache: Path, java: tuple[int, str, str]) -> None:
    runner = FakeRunner(java=java, docker_info=ENGINE)
    installed = ("java", "docker") if java is JAVA_17 else ("java", "mvn", "docker")

    assert choose_launcher(runner, which=which(*installed), environ={}) == "docker"


def test_with_nothing_at_all_the_error_says_what_to_install(cache: Path) -> None:
    with pytest.raises(LocalBrokerUnavailableError) as caught:
        choose_launcher(FakeRunner(), which=which(), environ={})

    text = str(caught.value)
    for part in (
        "Java is not",
        "Maven is not",
        "Docker is not",
        "apt-get install openjdk-17-jre-headless maven",
        "PULSAR_URL",
    ):
        assert part in text
    assert len(caught.value.problems) == 3


def test_a_docker_command_without_an_engine_does_not_help(cache: Path) -> None:
    runner = FakeRunner(java=JAVA_17, docker_info=NO_ENGINE)

    with pytest.raises(LocalBrokerUnavailableError, match=r"Maven is not installed.*; no Docker engine responds"):
        choose_launcher(runner, which=which("java", "docker"), environ={})
