"""The distribution for `make test-versions`: of Maven, or assembled from the broker's jars."""

from __future__ import annotations

import os
from pathlib import Path
from xml.etree import ElementTree

import pytest

from dispatch.devtools.localbroker import VERSION, LocalBrokerError, fetch_distribution, find_distribution
from tests.helpers import pulsar_distribution
from tests.helpers.pulsar_distribution import BASE, unpack_or_assemble

FIRST = (
    f"Could not find artifact org.apache.pulsar:pulsar-server-distribution:tar.gz:bin:{VERSION} in central (https://x)"
)
LATER = f"org.apache.pulsar:pulsar-server-distribution:tar.gz:bin:{VERSION} was not found in https://x"
TRANSFER = (
    f"Could not transfer artifact org.apache.pulsar:pulsar-server-distribution:tar.gz:bin:{VERSION} from/to central "
    "(https://x): no such host"
)

FAKE_MAVEN = """\
#!/bin/sh
echo "$@" >> "$0.commands"
for argument; do case "$argument" in
  -DoutputDirectory=*) output="${argument#*=}";;
  -Dartifact=*) version=$(echo "$argument" | cut -d: -f3);;
  --file=*) cp "${argument#*=}" "$0.pom";;
  *:copy-dependencies) goal=jars;;
esac; done
fail() { echo "[ERROR] $(cat "$1")"; exit 1; }
if [ "$goal" = jars ]; then
  [ -e "$0.without-jars" ] && fail "$0.without-jars"
  mkdir -p "$output" && touch "$output/pulsar-broker.jar"
else
  [ -e "$0.without-$version" ] && fail "$0.without-$version"
  home="$output/apache-pulsar-$version"
  mkdir -p "$home/bin" "$home/conf" "$home/lib"
  echo "$version" | tee "$home/bin/pulsar" "$home/conf/standalone.conf" "$home/lib/pulsar.jar" >/dev/null
fi
"""


@pytest.fixture
def maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fake `mvn` on the PATH that records its commands in `mvn.commands`, and its pom in `mvn.pom`.

    It has every distribution and the jars, apart from those with a file `mvn.without-VERSION` or `mvn.without-jars` that
    contains the message. The cache is empty.
    """
    script = tmp_path / "bin" / "mvn"
    script.parent.mkdir()
    script.write_text(FAKE_MAVEN)
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("DISPATCH_CACHE", str(tmp_path / "cache"))
    return script


def commands(maven: Path) -> list[str]:
    return maven.with_name("mvn.commands").read_text().splitlines()


@pytest.mark.process
def test_a_distribution_of_maven_is_unpacked(maven: Path) -> None:
    home = fetch_distribution(unpack=unpack_or_assemble)

    assert (home / "lib" / "pulsar.jar").read_text().strip() == VERSION
    assert len(commands(maven)) == 1


@pytest.mark.process
@pytest.mark.parametrize("message", [FIRST, LATER], ids=["first", "later"])
def test_a_missing_distribution_is_assembled_from_the_jars(maven: Path, message: str) -> None:
    maven.with_name(f"mvn.without-{VERSION}").write_text(message)
    progress: list[str] = []

    home = fetch_distribution(progress.append, unpack=unpack_or_assemble)

    assert home == find_distribution()
    assert sorted(part.name for part in home.iterdir()) == ["bin", "conf", "lib"]
    assert [jar.name for jar in (home / "lib").iterdir()] == ["pulsar-broker.jar"]
    assert (home / "bin" / "pulsar").read_text() == (home / "conf" / "standalone.conf").read_text() == f"{BASE}\n"
    assert sorted(entry.name for entry in home.parent.iterdir()) == [home.name, "lock"]
    assert (
        f"Maven has no distribution of Pulsar {VERSION}: assembling one from its jars and the rest of {BASE}"
        in progress
    )
    assert progress[-1].startswith(f"downloaded Pulsar {BASE} in")


@pytest.mark.process
def test_the_jars_have_the_versions_that_pulsar_manages_and_are_verified(maven: Path) -> None:
    maven.with_name(f"mvn.without-{VERSION}").write_text(FIRST)

    fetch_distribution(unpack=unpack_or_assemble)

    assert "--strict-checksums" in commands(maven)[1]
    pom = ElementTree.fromstring(maven.with_name("mvn.pom").read_text())
    managed, used = ([field.text for field in each] for each in pom.iter("dependency"))
    assert managed == ["org.apache.pulsar", "pulsar", VERSION, "pom", "import"]
    assert used == ["org.apache.pulsar", "pulsar-broker", VERSION]


@pytest.mark.process
def test_a_failed_download_is_not_taken_for_a_missing_distribution(maven: Path) -> None:
    maven.with_name(f"mvn.without-{VERSION}").write_text(TRANSFER)

    with pytest.raises(LocalBrokerError, match=r"no such host\nCheck the network"):
        fetch_distribution(unpack=unpack_or_assemble)

    assert len(commands(maven)) == 1


@pytest.mark.process
def test_a_version_without_jars_is_an_error_that_names_the_fix(maven: Path) -> None:
    maven.with_name(f"mvn.without-{VERSION}").write_text(FIRST)
    maven.with_name("mvn.without-jars").write_text(f"Could not find artifact org.apache.pulsar:pulsar:pom:{VERSION}")

    with pytest.raises(LocalBrokerError, match=r"pulsar:pom.*\n(.*\n)+.*make test-versions VERSIONS='4\.0\.8 4\.2\.4'"):
        fetch_distribution(unpack=unpack_or_assemble)

    assert find_distribution() is None


@pytest.mark.process
def test_the_command_ends_with_the_error(
    maven: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PULSAR_URL", raising=False)
    monkeypatch.setattr(pulsar_distribution, "choose_launcher", lambda: "process")
    maven.with_name(f"mvn.without-{VERSION}").write_text(TRANSFER)

    with pytest.raises(SystemExit, match="no such host"):
        pulsar_distribution.main()

    assert capsys.readouterr().out.startswith(f"[pulsar] downloading Pulsar {VERSION} with Maven")


def test_a_container_needs_no_distribution(maven: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PULSAR_URL", raising=False)
    monkeypatch.setattr(pulsar_distribution, "choose_launcher", lambda: "docker")

    pulsar_distribution.main()

    assert not maven.with_name("mvn.commands").exists()


def test_a_broker_of_the_environment_needs_no_distribution(maven: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULSAR_URL", "pulsar://127.0.0.1:6650")

    pulsar_distribution.main()

    assert not maven.with_name("mvn.commands").exists()
