"""Pulsar's server distribution: where it is kept, and how it gets there."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from dispatch.devtools.localbroker.errors import LocalBrokerError, Report, quiet
from dispatch.devtools.localbroker.lock import exclusive
from dispatch.devtools.localbroker.processes.process_control import spawn

#: The version all tests and figures are made with: the long-term support line.
VERSION = "4.0.6"

_ARTIFACT = f"org.apache.pulsar:pulsar-server-distribution:{VERSION}:tar.gz:bin"
_GOAL = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:unpack"
_FETCH_LIMIT = 1800.0  # seconds: 233 MiB over a slow line
_PROGRESS_INTERVAL = 5.0  # seconds

#: Puts the distribution's top folder into an empty folder.
Unpack = Callable[[Path, Report], None]


def cache_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Where dispatch keeps what it fetched.

    DISPATCH_CACHE, else XDG_CACHE_HOME/tool-dispatch, else ~/.cache/tool-dispatch.
    """
    if environ.get("DISPATCH_CACHE"):
        return Path(environ["DISPATCH_CACHE"]).expanduser().absolute()
    if environ.get("XDG_CACHE_HOME"):
        return Path(environ["XDG_CACHE_HOME"]).absolute() / "tool-dispatch"
    return Path.home() / ".cache" / "tool-dispatch"


def find_distribution() -> Path | None:
    """The unpacked distribution in the cache, or None."""
    home = _home()
    return home if _complete(home) else None


def fetch_distribution(report: Report = quiet, *, unpack: Unpack | None = None) -> Path:
    """The unpacked distribution; fetched with Maven into the cache if it is not there.

    It is unpacked beside its place and then renamed, so that an interrupted run leaves nothing half done, and of two
    runs at once the second waits for the first. About half a minute the first time, and 500 MiB on the disk at most.

    Args:
        report: takes the progress.
        unpack: instead of Maven.

    Raises:
        LocalBrokerError: Maven failed; its last lines are in the text.
    """
    found = find_distribution()
    if found is not None:
        return found
    home = _home()
    waiting = f"another process is fetching Pulsar {VERSION}; waiting for it"
    with exclusive(home.parent / "lock", waiting=waiting, report=report):
        found = find_distribution()
        if found is not None:
            return found
        for stale in home.parent.glob(".unpack-*"):  # of a killed run: nobody else is at work, we hold the lock
            shutil.rmtree(stale, ignore_errors=True)
        work = Path(tempfile.mkdtemp(dir=home.parent, prefix=".unpack-"))
        try:
            (unpack or unpack_with_maven)(work, report)
            if not _complete(work / home.name):
                raise LocalBrokerError(f"what was fetched holds no complete {home.name}")
            _move(work / home.name, home)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return home


def unpack_with_maven(folder: Path, report: Report) -> None:
    """Let Maven fetch the distribution (233 MiB, kept in its own repository) and unpack it into `folder`."""
    report(f"fetching Pulsar {VERSION} with Maven: 233 MiB, once, about half a minute")
    log = folder / "maven.log"
    # In a folder of its own: Maven reads a pom.xml it stands in, and litters.
    stand = folder / "maven"
    stand.mkdir()
    command = ["mvn", "-B", "-q", _GOAL, f"-Dartifact={_ARTIFACT}", f"-DoutputDirectory={folder}"]
    start = time.monotonic()
    child = spawn(command, log=log, cwd=stand, remove=folder)
    try:
        while not child.wait(_PROGRESS_INTERVAL):
            elapsed = time.monotonic() - start
            if elapsed > _FETCH_LIMIT:
                raise LocalBrokerError(
                    f"Maven has not fetched Pulsar within {_FETCH_LIMIT:.0f} s: is the network slow?"
                )
            report(f"fetching Pulsar {VERSION}: {elapsed:.0f} s so far")
    finally:
        child.kill()
    if child.returncode != 0:
        last_lines = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise LocalBrokerError(
            f"Maven could not fetch Pulsar {VERSION} (exit status {child.returncode}):\n{last_lines}\n"
            "Check the network and Maven's settings.xml (mirrors, proxies), or use a Pulsar that is running "
            "(DISPATCH_BROKER; PULSAR_URL for tests and benchmarks)."
        )
    report(f"fetched Pulsar {VERSION} in {time.monotonic() - start:.0f} s")


def _home() -> Path:
    return cache_dir() / "pulsar" / f"apache-pulsar-{VERSION}"


def _complete(home: Path) -> bool:
    return all((home / part).exists() for part in ("bin/pulsar", "conf/standalone.conf", "lib"))


def _move(source: Path, target: Path) -> None:
    """Rename a folder, unless another run was quicker (where locks do not work, as on some network file systems)."""
    try:
        source.rename(target)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY) or not _complete(target):
            raise LocalBrokerError(f"cannot move Pulsar to {target}: {error.strerror}; delete that folder") from error
