"""Export of the release before, from repositories made for the test."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks.suites import former_release
from benchmarks.suites.former_release import export_former_release


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    done = subprocess.run(["git", "-C", str(folder), *identity, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository whose former release has another ``dispatch``."""
    folder = tmp_path / "repository"
    (folder / "dispatch").mkdir(parents=True)
    (folder / "benchmarks").mkdir()
    git(folder, "init", "-q")
    for text in ("old", "new"):
        (folder / "dispatch" / "__init__.py").write_text(text)
        (folder / "benchmarks" / "__init__.py").write_text(text)
        git(folder, "add", ".")
        git(folder, "commit", "-q", "-m", text)
    monkeypatch.setattr(former_release, "COMMIT", git(folder, "rev-parse", "--short", "HEAD~1"))
    return folder


def test_the_package_alone_is_exported_once(repository: Path, tmp_path: Path) -> None:
    target = export_former_release(repository, tmp_path / "releases")
    assert target is not None
    assert (target / "dispatch" / "__init__.py").read_text() == "old"
    assert [each.name for each in target.iterdir()] == ["dispatch"]
    assert list((tmp_path / "releases").iterdir()) == [target]
    (target / "dispatch" / "__init__.py").write_text("still there")
    assert export_former_release(repository, tmp_path / "releases") == target
    assert (target / "dispatch" / "__init__.py").read_text() == "still there"


def test_without_the_commit_there_is_none(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(former_release, "COMMIT", "0123456")
    assert export_former_release(repository, tmp_path / "releases") is None
    assert export_former_release(tmp_path / "nowhere", tmp_path / "releases") is None
    assert not (tmp_path / "releases").exists()
