"""Pytest plugin for ``async def`` tests: virtual time, or a real event loop for tests marked ``wall_clock`` or ``pulsar``.

A test fails if it leaves a task, a timer, or an exception that was never retrieved. Registered by tests/conftest.py.
"""

from __future__ import annotations

import asyncio
import gc
import inspect

import pytest

from tests.helpers.clock import run


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "wall_clock: an async test that needs real time (sockets, processes)")


def pytest_collection_finish(session: pytest.Session) -> None:
    # Each async test ends with a garbage collection: exclude the objects that exist already.
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
