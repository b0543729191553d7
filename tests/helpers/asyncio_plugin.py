"""Pytest plugin for ``async def`` tests: virtual time, or a real event loop for tests marked ``wall_clock`` or ``pulsar``.

A test fails if it leaves a task, a timer, or an exception that was never retrieved. Registered by tests/conftest.py.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
from collections.abc import Generator

import pytest

from tests.helpers.clock import run


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "wall_clock: an async test that needs real time (sockets, processes)")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without collecting garbage: modules and tests stay, and looking through them takes 1.5 s of 11, and
    0.5 s once more before the first test.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # before the fixtures: their objects belong to the test
def pytest_runtest_setup(item: pytest.Item) -> None:
    # Each async test ends with a garbage collection, which takes 0.7 s when all modules are imported. What a test leaves
    # behind are its own objects: exclude the others, after a collection of what the tests before it left.
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    real = any(pyfuncitem.get_closest_marker(name) is not None for name in ("wall_clock", "pulsar"))
    run(lambda: test(**arguments), loop=asyncio.SelectorEventLoop() if real else None)
    return True
