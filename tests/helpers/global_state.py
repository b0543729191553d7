"""Pytest plugin: a test must leave the state of the process as it found it, or the tests after it depend on their order.

Compared are the environment, the handlers of signals, the levels of loggers, and which module objects
``sys.modules`` has for packages that tests replace. Registered by tests/conftest.py.
"""

from __future__ import annotations

import logging
import operator
import os
import signal
import sys
from collections.abc import Generator
from types import ModuleType

import pytest

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LOGGERS = tuple(map(logging.getLogger, (None, "dispatch", "asyncio", "pulsar", "trustgraph")))
REPLACED = ("trustgraph", "dispatch")
"""Packages whose modules a test can remove from ``sys.modules`` or load again."""
_before = pytest.StashKey[dict[str | bytes, object]]()
_modules: dict[str, ModuleType] = {}
_count = 0


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    item.stash[_before] = _read()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    result = yield
    before, after = item.stash[_before], _read()
    names = before.keys() | after.keys()
    changed = [f"{name!r} was {before.get(name)!r:.60}" for name in names if before.get(name) != after.get(name)]
    replaced: list[str] = []
    if not all(map(operator.is_, map(sys.modules.get, _modules), _modules.values())):
        replaced = [name for name, module in _modules.items() if sys.modules.get(name) is not module]
    for name in replaced:
        del _modules[name]
    if changed or replaced:
        pytest.fail(f"{item.nodeid} leaves the process changed: {', '.join(changed + replaced)}", pytrace=False)
    _remember_modules()
    return result


def _read() -> dict[str | bytes, object]:
    state: dict[str | bytes, object] = os.environ._data.copy()  # type: ignore[attr-defined] # encoded: 1 us instead of 92
    state.pop(b"PYTEST_CURRENT_TEST", None)
    state["handlers of signals"] = tuple(map(signal.getsignal, SIGNALS))
    state["levels of loggers"] = tuple(logger.level for logger in LOGGERS)
    return state


def _remember_modules() -> None:
    global _count
    if len(sys.modules) != _count:
        _count = len(sys.modules)
        _modules.update({name: module for name, module in sys.modules.copy().items() if name.startswith(REPLACED)})
