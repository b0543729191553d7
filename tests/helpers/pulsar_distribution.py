"""Put the distribution of `DISPATCH_PULSAR_VERSION` into the cache before `make test-versions` runs the tests with it.

Maven has the jars of every version of Pulsar, but the distribution of some only. Where it is missing, one is assembled.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from benchmarks.harness.broker import read_environment
from dispatch.devtools.localbroker import (
    MAVEN_PLUGIN,
    VERSION,
    LocalBrokerError,
    Report,
    choose_launcher,
    fetch_distribution,
    run_maven,
    unpack_with_maven,
)

BASE = "4.0.8"
"""The newest version with a distribution in Maven, whose start script and configuration an assembled one has."""

# Pulsar's own pom manages the versions of its dependencies: without it Maven takes others, some of which do not fit.
_POM = """\
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>tool-dispatch</groupId>
  <artifactId>pulsar-jars</artifactId>
  <version>1</version>
  <dependencyManagement>
    <dependencies>
      <dependency>
        <groupId>org.apache.pulsar</groupId>
        <artifactId>pulsar</artifactId>
        <version>{version}</version>
        <type>pom</type>
        <scope>import</scope>
      </dependency>
    </dependencies>
  </dependencyManagement>
  <dependencies>
    <dependency>
      <groupId>org.apache.pulsar</groupId>
      <artifactId>pulsar-broker</artifactId>
      <version>{version}</version>
    </dependency>
  </dependencies>
</project>
"""

# Maven's first message, and the later ones from its own repository; that of a failed transfer differs.
_NO_DISTRIBUTION = re.compile(r":pulsar-server-distribution:\S+ (was not found )?in ")


def unpack_or_assemble(folder: Path, report: Report) -> None:
    """Unpack the distribution of `VERSION` into `folder`; if Maven has none, assemble it from the jars of the broker.

    Raises:
        LocalBrokerError: Maven failed, or has neither.
    """
    try:
        unpack_with_maven(folder, report)
    except LocalBrokerError as error:
        if not _NO_DISTRIBUTION.search(str(error)):
            raise
        report(f"Maven has no distribution of Pulsar {VERSION}: assembling one from its jars and the rest of {BASE}")
        assemble(folder, report)


def assemble(folder: Path, report: Report) -> None:
    """Assemble a distribution in `folder`: the broker's jars of `VERSION`, start script and configuration of `BASE`.

    It has what a standalone broker and a cluster need; functions, proxy and the command line tools are missing.

    Raises:
        LocalBrokerError: Maven failed, or has no such jars.
    """
    home = folder / f"apache-pulsar-{VERSION}"
    pom = folder / "pom.xml"
    pom.write_text(_POM.format(version=VERSION), encoding="utf-8")
    arguments = ["--strict-checksums", f"--file={pom}", f"{MAVEN_PLUGIN}:copy-dependencies", "-DincludeScope=runtime"]
    # With the group in its name no jar replaces another one.
    arguments += ["-Dmdep.prependGroupId=true", f"-DoutputDirectory={home / 'lib'}"]
    try:
        run_maven(arguments, folder, report)
    except LocalBrokerError as error:
        raise LocalBrokerError(
            f"{error}\nIf Maven lacks the jars of this version, select others: make test-versions VERSIONS='4.0.8 4.2.4'"
        ) from error
    unpack_with_maven(folder, report, BASE)
    for part in ("bin", "conf"):
        shutil.move(folder / f"apache-pulsar-{BASE}" / part, home / part)


def _print_progress(line: str) -> None:
    print(f"[pulsar] {line}", flush=True)  # noqa: T201 - the progress of a download that takes a while


def main() -> None:
    """Fetch the distribution, unless the tests use a broker of the environment or a container."""
    try:
        if read_environment() is None and choose_launcher() == "process":
            fetch_distribution(_print_progress, unpack=unpack_or_assemble)
    except LocalBrokerError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
