"""Pytest plugin for the marker ``process``: ``make test-fast`` omits these tests, and others cannot start a process.

A test gets the marker automatically if it talks to a broker or runs Prometheus, and if its function or one of its fixtures
starts a process, directly or through functions and classes of ``tests`` and ``benchmarks``. A process that the tested code
starts is not found this way: mark such a test with ``@pytest.mark.process``. Registered by tests/conftest.py.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Generator, Iterator
from functools import cache
from types import CodeType, FunctionType, ModuleType

import pytest

IMPLYING_MARKERS = frozenset({"pulsar", "prometheus", "soak"})
STARTERS = frozenset(
    {"Popen", "ProcessPoolExecutor", "create_subprocess_exec", "executable", "fork", "runpytest_subprocess", "spawn"}
)
"""Names of functions that start a process, and ``sys.executable``: part of its command, as in the entry of an MCP server."""
AUDIT_EVENTS = frozenset({"os.fork", "os.forkpty", "os.posix_spawn", "os.system", "subprocess.Popen"})

_unmarked: pytest.Item | None = None
"""The test that runs, if it lacks the marker."""
_refused: list[str] = []
"""The processes that it tried to start."""
_harmless: set[object] = set()
"""Functions and classes that start no process: 13,000 tests share many."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "process: starts a process or talks to a broker; most tests get it automatically"
    )


@pytest.hookimpl(tryfirst=True)  # `-m` selects by it
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    known: dict[int, bool] = {}
    for item in items:
        is_process = not IMPLYING_MARKERS.isdisjoint(mark.name for mark in item.iter_markers())
        if not is_process and isinstance(item, pytest.Function):
            test = id(item._fixtureinfo)  # one object for all cases of a test
            if test not in known:
                known[test] = any(map(_starts_process, _functions(item)))
            is_process = known[test]
        if is_process:
            item.add_marker("process")


def _functions(item: pytest.Function) -> Iterator[object]:
    """Yield the test's function and those of its fixtures."""
    yield item.function
    for definitions in item._fixtureinfo.name2fixturedefs.values():
        yield from (definition.func for definition in definitions)


@cache
def _starts_process(function: object) -> bool:
    seen: set[object] = set()
    remaining = [function]
    while remaining:
        value = inspect.unwrap(remaining.pop())  # type: ignore[arg-type]
        if value in seen or value in _harmless or not value.__module__.startswith(("tests.", "benchmarks.")):
            continue
        seen.add(value)
        if isinstance(value, type):
            members = (getattr(member, "fget", getattr(member, "__func__", member)) for member in vars(value).values())
            remaining += [*value.__bases__, *(member for member in members if isinstance(member, FunctionType))]
        elif isinstance(value, FunctionType):
            names = set(_names(value.__code__))
            if names & STARTERS or names >= {"subprocess", "run"}:
                return True
            remaining += _resolve(names, vars(sys.modules[value.__module__]))
    _harmless.update(seen)
    return False


def _names(code: CodeType) -> Iterator[str]:
    """Yield the global names and attributes that the code and the functions inside of it use."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _resolve(names: set[str], namespace: dict[str, object]) -> Iterator[object]:
    """Yield the functions and classes that the names stand for, in the namespace or in a module of it."""
    for value in (namespace[name] for name in names if name in namespace):
        members = [getattr(value, name, None) for name in names] if isinstance(value, ModuleType) else [value]
        found = (getattr(member, "__wrapped__", member) for member in members)  # of functools.cache
        yield from (member for member in found if isinstance(member, FunctionType | type))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    global _unmarked
    _unmarked = None if item.get_closest_marker("process") else item
    _refused.clear()
    try:
        return (yield)
    finally:
        _unmarked = None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    result = yield
    if _refused:  # by code that handles the failure
        pytest.fail(_refused[0], pytrace=False)
    return result


def _refuse_unmarked(event: str, arguments: tuple[object, ...]) -> None:
    if _unmarked is not None and event in AUDIT_EVENTS:
        _refused.append(
            f"{_unmarked.nodeid} starts a process ({event} {arguments[:2]!s:.100}), but lacks the marker `process`."
            " Mark it with @pytest.mark.process: `make test-fast` omits such tests."
        )
        pytest.fail(_refused[-1])


sys.addaudithook(_refuse_unmarked)
