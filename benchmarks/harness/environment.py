"""Machine and versions of a run, without names of hosts, users or folders."""

from __future__ import annotations

import os
import platform
import urllib.request
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.harness.broker import Endpoint
from dispatch import __version__

PACKAGES = ("pulsar-client", "trustgraph-base", "msgspec", "matplotlib")


@dataclass(frozen=True)
class Setting:
    """Machine, versions, date.

    Attributes:
        date: when the run began, ISO 8601, UTC.
        machine: processors, their kind, memory in GiB, operating system,
            and the load before the run: what others did on it.
        versions: Python and packages.
        broker: its version, and whether it was started for this run.
    """

    date: str
    machine: dict[str, str | int | float | None]
    versions: dict[str, str]
    broker: dict[str, str | bool]


def look(endpoint: Endpoint, load_before: float | None = None) -> Setting:
    """Return the setting of a run that starts now on this broker; ``load_before`` is the load of the machine."""
    return Setting(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        machine={
            "processors": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "kind": _processor(),
            "memory_gib": _memory_gib(),
            "system": f"{platform.system()} {platform.machine()}",
            "load_before": load_before,
        },
        versions={
            "python": f"{platform.python_implementation()} {platform.python_version()}",
            "dispatch": __version__,
            **{name: _version(name) for name in PACKAGES},
        },
        broker={"version": _broker_version(endpoint), "started_for_this_run": endpoint.broker is not None},
    )


def load() -> float | None:
    """The machine's load: processes that ran or wanted to, over the last minute; None where that is not known."""
    try:
        return round(os.getloadavg()[0], 2)
    except OSError:
        return None


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "") or (
        platform.processor() or platform.machine()
    )


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (ValueError, OSError):
        return None


def _broker_version(endpoint: Endpoint) -> str:
    request = urllib.request.Request(f"{endpoint.web_url.rstrip('/')}/admin/v2/brokers/version")
    if endpoint.token is not None:
        request.add_header("Authorization", f"Bearer {endpoint.token}")
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=5) as answer:
            return str(answer.read(200).decode().strip().strip('"'))
    except (OSError, ValueError):
        return "unknown"
