"""Check of the Java installation for the broker."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping

from dispatch.devtools.localbroker.processes.command import Runner, Which, run

MINIMUM_JAVA = 17


def find_java_problem(
    runner: Runner = run, *, which: Which = shutil.which, environ: Mapping[str, str] = os.environ
) -> str | None:
    """Return why the broker's start script finds no usable Java, in one clause; None if it finds one.

    Searches like that script: JAVA_HOME if set, else the PATH.
    """
    home = environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else which("java")
    if java is None:
        return "Java is not installed (no java on the PATH)"
    where = f"{java} (JAVA_HOME)" if home else java
    try:
        result = runner([java, "-version"])
    except OSError as error:
        return f"{where} cannot be run: {error.strerror or error}"
    text = result.stderr + result.stdout
    if result.returncode != 0:
        return f"{where} failed: {text.strip()[:200] or f'exit status {result.returncode}'}"
    version = parse_java_version(text)
    if version is None:
        return f"{where} does not report its version"
    if version < MINIMUM_JAVA:
        return f"{where} is Java {version}, but Pulsar needs Java {MINIMUM_JAVA} or newer"
    return None


def parse_java_version(text: str) -> int | None:
    """Parse the feature release printed by `java -version`: 17 of `"17.0.15"`, 21 of `"21-ea"`, 8 of `"1.8.0_392"`."""
    found = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if found is None:
        return None
    first, second = int(found[1]), found[2]
    return int(second) if first == 1 and second is not None else first
