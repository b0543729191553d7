"""Fixtures of the tests of the local broker."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatch.devtools.localbroker import VERSION
from tests.unit.devtools.fakes import AdminStandIn, Machine, serve_admin, write_script


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of this test's own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("DISPATCH_CACHE", str(folder))
    return folder


@pytest.fixture
def machine(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine with an empty cache and without any command."""
    return Machine(monkeypatch)


@pytest.fixture
def admin_stand_in() -> Iterator[AdminStandIn]:
    """A stand-in for Pulsar's admin interface."""
    with serve_admin() as stand_in:
        yield stand_in


@pytest.fixture
def fake_distribution(cache: Path) -> Path:
    """A distribution whose start script does what the test wants; the folder for `write_script`."""
    home = cache / "pulsar" / f"apache-pulsar-{VERSION}"
    for part in ("bin", "conf", "lib"):
        (home / part).mkdir(parents=True)
    (home / "conf" / "standalone.conf").write_text("brokerServicePort=6650\nwebServicePort=8080")
    write_script(home / "bin", "exit 1")
    return home / "bin"


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fake `docker` on the PATH; the folder of what steers it and what it notes (see `fake_docker.py`)."""
    folder = tmp_path / "docker"
    folder.mkdir()
    script = folder / "docker"
    fake = Path(__file__).with_name("fake_docker.py")
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{fake}" "{folder}" "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(fake.parents[3]))
    return folder
