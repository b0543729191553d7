"""The command line in this process (``run``), and as a user's own process (see tests/helpers/cli_processes.py)."""

from __future__ import annotations

import contextlib
import json
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dispatch.cli import main
from tests.helpers.dispatcher_and_service import topics_of

VARIABLES = (
    "DISPATCH_BROKER",
    "DISPATCH_CATALOG",
    "DISPATCH_APPROVALS",
    "DISPATCH_POLICY",
    "DISPATCH_GRANTS",
    "DISPATCH_TOKEN",
    "DISPATCH_TOKEN_FILE",
    "DISPATCH_TRUST_CERTS",
    "DISPATCH_ADMIN",
    "DISPATCH_ADMIN_URLS",
    "DISPATCH_ADMIN_TOKEN",
    "NO_COLOR",
    "FORCE_COLOR",
)


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What it wrote to stdout, which is one line of JSON."""
        assert self.out.count("\n") == 1, self.out
        return json.loads(self.out)


class Run:
    """``run("tools", "--json")`` in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str, code: int | None = None) -> Ended:
        """Run a command; ``code``: the exit code that it must have."""
        self._capsys.readouterr()
        ended = Ended(main(arguments), *self._capsys.readouterr())
        assert code in (None, ended.code), ended
        return ended

    def clean(self, *arguments: str, code: int = 0) -> Ended:
        """Run a command that writes nothing to stderr."""
        ended = self(*arguments, code=code)
        assert ended.err == ""
        return ended

    def refused(self, *arguments: str, code: int = 2) -> str:
        """Run a command that fails and writes nothing to stdout; return what it wrote to stderr."""
        ended = self(*arguments, code=code)
        assert ended.out == ""
        return ended.err


@pytest.fixture(autouse=True)
def as_if_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own_logging: None) -> None:
    """A user's machine without settings, in a folder without ``tools/``; other tests' logging stays as it is."""
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(capsys)


@contextlib.contextmanager
def no_room() -> Iterator[None]:
    """No file can be written, as on a full disk: the error of a write has no name of a file."""
    former = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, former[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, former)


def write_catalog(folder: Path, topic: str = "joke", **tool_keys: Any) -> Path:
    """A folder with one service on ``topic`` and its tool ``tell-joke``."""
    service = {"id": "joke-service", **topics_of(topic), "config-params": [{"name": "style"}]}
    tool = {
        "type": "tool-service",
        "name": "tell-joke",
        "description": "Tell a joke. It is short.",
        "service": "joke-service",
        "style": "pun",
        "arguments": [
            {"name": "topic", "type": "string", "description": "About what."},
            {"name": "words", "type": "integer", "description": "How long.", "required": False},
        ],
        **tool_keys,
    }
    for kind, name, value in (("tool-service", "joke-service", service), ("tool", "tell-joke", tool)):
        (folder / kind).mkdir(parents=True)
        (folder / kind / f"{name}.json").write_text(json.dumps(value))
    return folder


@pytest.fixture
def catalog_folder(tmp_path: Path) -> Path:
    """See write_catalog."""
    return write_catalog(tmp_path / "catalogue")
