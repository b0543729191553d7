"""Loads examples from their files, as `dispatch serve FILE:CLASS` does."""

from __future__ import annotations

import contextlib
import importlib.util
import runpy
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import ModuleType

import pytest

import dispatch

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TOOLS = EXAMPLES / "tools"

Load = Callable[[str], ModuleType]
Run = Callable[..., tuple[object, str, str]]
"""Returns what the program exited with, and what it wrote."""
Serving = Callable[[dispatch.ToolService, str], AbstractAsyncContextManager[dispatch.Dispatcher]]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Load:
    """Loads an example by its name; its neighbours are in reach, as they are for ``python examples/NAME.py``."""
    monkeypatch.syspath_prepend(str(EXAMPLES))

    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs a program as ``python examples/NAME`` does, in this process."""
    monkeypatch.syspath_prepend(str(EXAMPLES))

    def run(program: str, *arguments: str) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", [f"examples/{program}", *arguments])
        code: object = 0
        try:
            runpy.run_path(str(EXAMPLES / program), run_name="__main__")
        except SystemExit as end:
            code = end.code
        return code, *capfd.readouterr()

    return run


@pytest.fixture
def serving() -> Serving:
    """Serves a service on the embedded broker, with a dispatcher that knows the examples' tools."""

    @contextlib.asynccontextmanager
    async def serving(service: dispatch.ToolService, topic: str) -> AsyncIterator[dispatch.Dispatcher]:
        broker = "memory://examples"
        async with (
            dispatch.ToolServer(service, broker, service=topic),
            dispatch.connect(broker, catalog=TOOLS) as dispatcher,
        ):
            yield dispatcher

    return serving
