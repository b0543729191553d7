"""Validate the deployment kit with the linters of its formats: ``python -m deploy.check``.

What the machine lacks is reported with the command that installs it; in CI (``CI`` is set) it is a failure.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import yaml

KIT = Path(__file__).parent
TOOLS = Path(sys.prefix) / "tools"
"""Where ``make`` puts the tools that Debian lacks."""
CHART = KIT / "helm" / "dispatch"
ALL_ON = ("--values", str(CHART / "ci" / "all-values.yaml"))
"""Values with which every template and branch of the chart is rendered."""
CUSTOM_KINDS = ("ServiceMonitor",)
"""Kinds of operators: Kubernetes itself has no schema of them."""
KUBERNETES = "1.33"


class MissingError(Exception):
    """A tool is missing; the message has the command that installs it."""


def find(program: str, install: str) -> str:
    """Return the path of ``program``.

    Raises:
        MissingError: it is not installed.
    """
    places = (str(TOOLS), str(TOOLS / "python" / "bin"), os.environ.get("PATH", ""))
    found = shutil.which(program, path=os.pathsep.join(places))
    if found is None:
        raise MissingError(f"{program} is missing: {install}")
    return found


def run(*command: str | Path) -> str:
    """Run a linter; return what it wrote.

    Raises:
        ValueError: it found a mistake.
    """
    ended = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, timeout=300)
    said = ended.stdout + ended.stderr
    if ended.returncode:
        raise ValueError(said.strip() or f"exit code {ended.returncode}")
    return ended.stdout


def check_image() -> None:
    """Lint the Dockerfile."""
    run(find("hadolint", "make tools"), KIT / "Dockerfile")


def check_compose() -> None:
    """Validate the compose file against the schema of the Compose specification, and find what it mounts."""
    run(find("check-jsonschema", "make tools"), "--builtin-schema", "vendor.compose-spec", KIT / "compose.yaml")
    services = yaml.safe_load((KIT / "compose.yaml").read_text())["services"]
    for name, service in services.items():
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            if source.startswith(".") and not (KIT / source).exists():
                raise ValueError(f"{name} mounts {source}, which does not exist")


def check_chart() -> None:
    """Lint the Helm chart, and validate what it renders against the schemas of Kubernetes: as it is, and with all on."""
    helm, validate = find("helm", "make tools"), find("kubernetes-validate", "make tools")
    version = ("--kube-version", f"{KUBERNETES}.0")
    run(helm, "lint", "--strict", *version, CHART)
    for values in ((), ALL_ON):
        rendered = [each for each in yaml.safe_load_all(run(helm, "template", "it", CHART, *version, *values)) if each]
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            yaml.safe_dump_all([each for each in rendered if each["kind"] not in CUSTOM_KINDS], file)
            file.flush()
            run(validate, "--strict", "-k", KUBERNETES, file.name)


def check_prometheus() -> None:
    """Check Prometheus' configuration."""
    run(find("promtool", "apt-get install prometheus"), "check", "config", "--syntax-only", KIT / "prometheus.yml")


def check_units() -> None:
    """Verify the systemd units."""
    analyze = find("systemd-analyze", "apt-get install systemd")
    for unit in sorted((KIT / "systemd").iterdir()):
        run(analyze, "verify", "--man=no", unit)


CHECKS: tuple[Callable[[], None], ...] = (check_image, check_compose, check_chart, check_prometheus, check_units)


def problems() -> Iterator[str]:
    """Yield what is wrong. What is missing is reported on stderr, and is a problem in CI alone."""
    for check in CHECKS:
        try:
            check()
        except MissingError as missing:
            if os.environ.get("CI"):
                yield str(missing)
            sys.stderr.write(f"not checked: {missing}\n")
        except ValueError as mistake:
            yield f"{check.__name__}: {mistake}"


def main() -> int:
    """Report every problem; return the exit code."""
    found = list(problems())
    sys.stderr.write("".join(f"{each}\n" for each in found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
