""" """

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dispatch.devtools.localbroker import (
    VERSION,
    LocalBrokerError,
    Report,
    cache_dir,
    fetch_distribution,
    find_distribution,
    find_java_problem,
    parse_java_version,
    run,
)
from tests.unit.devtools.localbroker.fakes import Machine

NAME = f"apache-pulsar-{VERSION}"


PARTS = ("bin/pulsar", "conf/standalone.conf", "lib/pulsar.jar")


def unpack(folder: Path, _report: Report) -> None:
    for part in PARTS:
        file = folder / NAME / part
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(part)


def leftovers(cache: Path) -> list[str]:
    return sorted(entry.name for entry in (cache / "pulsar").iterdir() if entry.name not in ("lock", NAME))


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"DISPATCH_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, Path("/a")),
        ({"DISPATCH_CACHE": "", "XDG_CACHE_HOME": "/b"}, Path("/b/tool-dispatch")),
        ({}, Path.home() / ".cache" / "tool-dispatch"),
    ],
)
def test_where_the_cache_is(environ: dict[str, str], expected: Path) -> None:
    assert cache_dir(environ) == expected


def test_it_is_fetched_once(cache: Path) -> None:
    assert find_distribution() is None

    home = fetch_distribution(unpack=unpack)

    assert home == find_distribution() == cache / "pulsar" / NAME
    assert fetch_distribution(unpack=lambda _folder, _report: pytest.fail("it is there")) == home
    assert leftovers(cache) == []


def test_of_two_at_once_the_second_waits_and_fetches_nothing(cache: Path) -> None:
    fetching, waiting = threading.Event(), threading.Event()
    said: list[str] = []
    homes: list[Path] = []

    def slow(folder: Path, report: Report) -> None:
        fetching.set()
        assert waiting.wait(10)
        unpack(folder, report)

    def report(line: str) -> None:
        said.append(line)
        waiting.set()

    first = threading.Thread(target=lambda: homes.append(fetch_distribution(unpack=slow)))
    first.start()
    assert fetching.wait(10)
    homes.append(fetch_distribution(report, unpack=lambda _folder, _report: pytest.fail("one is enough")))
    first.join()

    assert homes == [cache / "pulsar" / NAME] * 2
    assert said == [f"another process is downloading Pulsar {VERSION}; waiting for it"]


def test_who_loses_the_race_to_the_name_takes_the_winners(cache: Path) -> None:
    def overtaken(folder: Path, report: Report) -> None:
        unpack(folder, report)
        unpack(cache / "pulsar", report)  # as another run would, where locks do not work
        (cache / "pulsar" / NAME / "lib" / "winner").touch()

    home = fetch_distribution(unpack=overtaken)

    assert (home / "lib" / "winner").exists()
    assert leftovers(cache) == []


def test_something_else_under_the_name_is_named(cache: Path) -> None:
    (cache / "pulsar" / NAME / "strange").mkdir(parents=True)

    with pytest.raises(LocalBrokerError, match="delete that folder"):
        fetch_distribution(unpack=unpack)

    assert leftovers(cache) == []


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, LocalBrokerError])
def test_an_interrupted_fetch_leaves_nothing(cache: Path, interruption: type[BaseException]) -> None:
    def interrupted(folder: Path, _report: Report) -> None:
        (folder / NAME / "bin").mkdir(parents=True)
        raise interruption

    with pytest.raises(interruption):
        fetch_distribution(unpack=interrupted)

    assert leftovers(cache) == []
    assert find_distribution() is None
    assert fetch_distribution(unpack=unpack) == find_distribution()


def test_what_is_incomplete_never_gets_the_name(cache: Path) -> None:
    with pytest.raises(LocalBrokerError, match="no complete"):
        fetch_distribution(unpack=lambda folder, _report: (folder / NAME / "bin").mkdir(parents=True))

    assert find_distribution() is None


def test_what_a_killed_run_left_is_cleared_away(cache: Path) -> None:
    script = (
        "import os, signal\n"
        "from dispatch.devtools.localbroker import fetch_distribution\n"
        "def die(folder, report):\n"
        "    (folder / 'half').touch()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "fetch_distribution(unpack=die)\n"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -9
    assert len(leftovers(cache)) == 1

    fetch_distribution(unpack=unpack)

    assert leftovers(cache) == []


@pytest.fixture
def fake_maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `mvn` which leaves its arguments and its working directory beside itself, and unpacks, unless it is to fail."""
    script = tmp_path / "bin" / "mvn"
    script.parent.mkdir()
    make = " && ".join(f'mkdir -p "$out/{NAME}/{Path(part).parent}" && touch "$out/{NAME}/{part}"' for part in PARTS)
    script.write_text(
        "#!/bin/sh\n"
        'printf "%s\\n" "$@" > "$0.arguments"; pwd > "$0.cwd"\n'
        'for argument; do case "$argument" in -DoutputDirectory=*) out="${argument#*=}";; esac; done\n'
        '[ -e "$0.fail" ] && { echo "[ERROR] no such host"; exit 3; }\n' + make + "\n"
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}{os.environ['PATH']}")
    return script


@pytest.mark.process
def test_maven_is_asked_for_this_version_in_a_folder_of_its_own(cache: Path, fake_maven: Path) -> None:
    said: list[str] = []

    home = fetch_distribution(said.append)

    assert (home / "bin" / "pulsar").exists()
    arguments = fake_maven.with_name("mvn.arguments").read_text()
    assert f"-Dartifact=org.apache.pulsar:pulsar-server-distribution:{VERSION}:tar.gz:bin" in arguments
    # Maven would read a pom.xml of the working directory, and writes into it.
    assert Path(fake_maven.with_name("mvn.cwd").read_text().strip()).parent.parent == cache / "pulsar"
    assert said[0].startswith(f"downloading Pulsar {VERSION} with Maven")
    assert said[-1].startswith(f"downloaded Pulsar {VERSION} in")
    assert leftovers(cache) == []


@pytest.mark.process
def test_a_maven_that_fails_is_quoted(cache: Path, fake_maven: Path) -> None:
    fake_maven.with_name("mvn.fail").touch()

    with pytest.raises(LocalBrokerError, match=r"exit status 3\):\n\[ERROR\] no such host\nCheck the network"):
        fetch_distribution()

    assert leftovers(cache) == []


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


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ('openjdk version "17.0.15"', None),
        ('openjdk version "11.0.2"', "/usr/bin/java is Java 11, but Pulsar needs Java 17 or newer"),
    ],
)
def test_a_java_that_is_too_old_is_named(machine: Machine, said: str, problem: str | None) -> None:
    machine.has("java", java=(0, "", said))

    assert find_java_problem() == problem


def test_a_stub_that_only_asks_to_install_java(machine: Machine) -> None:
    machine.has("java", java=(1, "", "Unable to locate a Java Runtime."))

    assert "Unable to locate" in (find_java_problem() or "")


def test_no_java_at_all(machine: Machine) -> None:
    assert "not installed" in (find_java_problem() or "")


def test_java_home_goes_before_the_path_as_in_the_start_script(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = machine.has("java", java=(0, "", 'version "17"'))
    monkeypatch.setenv("JAVA_HOME", "/opt/jdk")

    find_java_problem()

    assert runner.commands == [["/opt/jdk/bin/java", "-version"]]


def test_a_wrong_java_home_is_named(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.has("java", java=FileNotFoundError(2, "No such file or directory"))
    monkeypatch.setenv("JAVA_HOME", "/opt/jdk")

    assert find_java_problem() == "/opt/jdk/bin/java (JAVA_HOME) cannot be run: No such file or directory"


def test_a_command_that_hangs_is_ended() -> None:
    answer = run([sys.executable, "-c", "import signal; signal.pause()"], timeout=0.2)

    assert answer.returncode == 124
    assert "did not finish within 0.2 s" in answer.stderr
