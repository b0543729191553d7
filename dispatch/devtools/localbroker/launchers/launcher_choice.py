"""Choice between a local process and a container."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from typing import Literal

from dispatch.devtools.localbroker.errors import LocalBrokerUnavailableError
from dispatch.devtools.localbroker.install.distribution import find_distribution
from dispatch.devtools.localbroker.install.java import MINIMUM_JAVA, find_java_problem
from dispatch.devtools.localbroker.launchers.docker import IMAGE, is_engine_available
from dispatch.devtools.localbroker.processes.command import Runner, Which, run

#: Process of this machine, or container.
Launcher = Literal["process", "docker"]

_FIX = (
    f"Either install Java {MINIMUM_JAVA} or newer and Maven:\n    apt-get install openjdk-{MINIMUM_JAVA}-jre-headless "
    f"maven\n    (macOS: brew install openjdk@{MINIMUM_JAVA} maven)\nor start a Docker engine (then the image {IMAGE} "
    "is used),\nor use a running Pulsar broker:\n    DISPATCH_BROKER=pulsar://HOST:6650 (or --broker) for the dispatch "
    "command,\n    PULSAR_URL=pulsar://HOST:6650 PULSAR_ADMIN_URL=http://HOST:8080 for tests and benchmarks"
)


def choose_launcher(
    runner: Runner = run, *, which: Which = shutil.which, environ: Mapping[str, str] = os.environ
) -> Launcher:
    """Choose a process if Java is installed and the distribution is cached or Maven can download it; else Docker.

    Raises:
        LocalBrokerUnavailableError: neither is possible; the message names what to install.
    """
    problems = []
    java = find_java_problem(runner, which=which, environ=environ)
    if java is not None:
        problems.append(java)
    if find_distribution() is None and which("mvn") is None:
        problems.append("Maven is not installed (no mvn on the PATH)")
    if not problems:
        return "process"
    if which("docker") is not None and is_engine_available(runner):
        return "docker"
    problems.append("no Docker engine responds" if which("docker") else "Docker is not installed")
    raise LocalBrokerUnavailableError(problems, _FIX)
