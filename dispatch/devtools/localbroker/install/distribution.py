"""Pulsar's server distribution: cache folder and download."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from dispatch.devtools.localbroker.errors import LocalBrokerError, Report, ignore_progress
from dispatch.devtools.localbroker.lock import hold_lock
from dispatch.devtools.localbroker.processes.process_control import spawn

#: Version of all tests and measurements: the long-term support line.
VERSION = "4.0.6"

_ARTIFACT = f"org.apache.pulsar:pulsar-server-distribution:{VERSION}:tar.gz:bin"
_GOAL = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:unpack"
_FETCH_LIMIT = 1800.0  # seconds: 233 MiB over a slow connection
_PROGRESS_INTERVAL = 5.0  # seconds

#: Unpacks the distribution into an empty folder.
Unpack = Callable[[Path, Report], None]


def cache_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the cache folder of dispatch.

    DISPATCH_CACHE, else XDG_CACHE_HOME/tool-dispatch, else ~/.cache/tool-dispatch.
    """
    if environ.get("DISPATCH_CACHE"):
        return Path(environ["DISPATCH_CACHE"]).expanduser().absolute()
    if environ.get("XDG_CACHE_HOME"):
        return Path(environ["XDG_CACHE_HOME"]).absolute() / "tool-dispatch"
    return Path.home() / ".cache" / "tool-dispatch"


def find_distribution() -> Path | None:
    """Return the unpacked distribution in the cache, or None."""
    home = _home()
    return home if _is_complete(home) else None


def fetch_distribution(report: Report = ignore_progress, *, unpack: Unpack | None = None) -> Path:
    """Return the unpacked distribution; download it with Maven into the cache if needed.

    It is unpacked into a temporary folder and renamed, so an interrupted run leaves no partial distribution; of two
    concurrent runs the second waits. The first run takes about half a minute and at most 500 MiB of disk.

    Args:
        report: receives progress lines.
        unpack: replaces Maven, for tests.

    Raises:
        LocalBrokerError: Maven failed; the message contains its last lines.
    """
    found = find_distribution()
    if found is not None:
        return found
    home = _home()
    waiting = f"another process is downloading Pulsar {VERSION}; waiting for it"
    with hold_lock(home.parent / "lock", waiting=waiting, report=report):
        found = find_distribution()
        if found is not None:
            return found
        for stale in home.parent.glob(".unpack-*"):  # remains of a killed run: the lock excludes a running one
            shutil.rmtree(stale, ignore_errors=True)
        temporary = Path(tempfile.mkdtemp(dir=home.parent, prefix=".unpack-"))
        try:
            (unpack or unpack_with_maven)(temporary, report)
            if not _is_complete(temporary / home.name):
                raise LocalBrokerError(f"the download contains no complete {home.name}")
            _move(temporary / home.name, home)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return home


def unpack_with_maven(folder: Path, report: Report) -> None:
    """Download the distribution with Maven (233 MiB, stored in its repository) and unpack it into `folder`."""
    report(f"downloading Pulsar {VERSION} with Maven: 233 MiB, once, about half a minute")
    log = folder / "maven.log"
    # A separate folder: Maven reads a pom.xml of its working folder and writes files there.
    working_folder = folder / "maven"
    working_folder.mkdir()
    command = ["mvn", "-B", "-q", _GOAL, f"-Dartifact={_ARTIFACT}", f"-DoutputDirectory={folder}"]
    start = time.monotonic()
    child = spawn(command, log=log, cwd=working_folder, remove=folder)
    try:
        while not child.wait(_PROGRESS_INTERVAL):
            elapsed = time.monotonic() - start
            if elapsed > _FETCH_LIMIT:
                raise LocalBrokerError(f"Maven did not download Pulsar within {_FETCH_LIMIT:.0f} s: check the network")
            report(f"downloading Pulsar {VERSION}: {elapsed:.0f} s so far")
    finally:
        child.kill()
    if child.returncode != 0:
        last_lines = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise LocalBrokerError(
            f"Maven could not download Pulsar {VERSION} (exit status {child.returncode}):\n{last_lines}\n"
            "Check the network and Maven's settings.xml (mirrors, proxies), or use a running Pulsar broker "
            "(DISPATCH_BROKER; PULSAR_URL for tests and benchmarks)."
        )
    report(f"downloaded Pulsar {VERSION} in {time.monotonic() - start:.0f} s")


def _home() -> Path:
    return cache_dir() / "pulsar" / f"apache-pulsar-{VERSION}"


def _is_complete(home: Path) -> bool:
    return all((home / part).exists() for part in ("bin/pulsar", "conf/standalone.conf", "lib"))


def _move(source: Path, target: Path) -> None:
    """Rename a folder unless a concurrent run has done so (locks do not work on some network file systems)."""
    try:
        source.rename(target)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY) or not _is_complete(target):
            raise LocalBrokerError(f"cannot move Pulsar to {target}: {error.strerror}; delete that folder") from error
