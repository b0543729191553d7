from __future__ import annotations

import sys

import pytest

from dispatch.devtools.localbroker.launch import find_java_problem, parse_java_version
from dispatch.devtools.localbroker.processes import run
from tests.unit.devtools.localbroker.fakes import FakeRunner


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime', 17),
        ('openjdk version "21-ea" 2023', 21),
        ('openjdk version "25" 2025', 25),
        ('java version "1.8.0_392"', 8),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "11.0.2"', 11),
        ("no version here", None),
    ],
)
def test_the_version_is_read(text: str, version: int | None) -> None:
    assert parse_java_version(text) == version


def problem(answer: tuple[int, str, str] | OSError, home: str | None = None) -> str | None:
    environ = {} if home is None else {"JAVA_HOME": home}
    return find_java_problem(FakeRunner(java=answer), which=lambda name: f"/usr/bin/{name}", environ=environ)


def test_a_java_that_is_new_enough_is_no_problem() -> None:
    assert problem((0, "", 'openjdk version "17.0.15"')) is None


def test_a_java_that_is_too_old_is_named() -> None:
    assert problem((0, "", 'openjdk version "11.0.2"')) == (
        "/usr/bin/java is Java 11, but Pulsar needs Java 17 or newer"
    )


def test_no_java_at_all() -> None:
    assert "not installed" in (find_java_problem(FakeRunner(), which=lambda _name: None, environ={}) or "")


def test_java_home_goes_before_the_path_as_in_the_start_script() -> None:
    runner = FakeRunner(java=(0, "", 'version "17"'))

    find_java_problem(runner, which=lambda name: f"/usr/bin/{name}", environ={"JAVA_HOME": "/opt/jdk"})

    assert runner.commands == [["/opt/jdk/bin/java", "-version"]]


def test_a_wrong_java_home_is_named() -> None:
    assert problem(FileNotFoundError(2, "No such file or directory"), home="/opt/jdk") == (
        "/opt/jdk/bin/java (JAVA_HOME) cannot be run: No such file or directory"
    )


def test_a_stub_that_only_asks_to_install_java() -> None:
    assert "Unable to locate" in (problem((1, "", "Unable to locate a Java Runtime.")) or "")


def test_a_command_that_hangs_is_ended() -> None:
    answer = run([sys.executable, "-c", "import signal; signal.pause()"], timeout=0.2)

    assert answer.returncode == 124
    assert "did not finish within 0.2 s" in answer.stderr
