"""Pytest runs ``async def`` tests on virtual time; those marked ``wall_clock`` (or ``pulsar``) on a real loop.

Each must leave no task, no timer, and no exception that nobody looked at. Registered by tests/conftest.py.
"""

from __future__ import annotations

import asyncio
import gc
import inspect

import hypothesis
import pytest

from tests.helpers.clock import run
from tests.helpers.run_profile import IN_CI

# A machine that is busy with something else must not make a property test fail: no time limits for examples.
hypothesis.settings.register_profile("dispatch", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
# CI judges a change by the same examples each time; what others would find is sought elsewhere, with new ones in each run.
hypothesis.settings.register_profile("ci", parent=hypothesis.settings.get_profile("dispatch"), derandomize=True)
# `make mutation`: the same few examples for every mutant, and no time spent on a smaller one that kills it.
hypothesis.settings.register_profile(
    "mutation",
    parent=hypothesis.settings.get_profile("dispatch"),
    derandomize=True,
    max_examples=25,
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
)


def pytest_configure(config: pytest.Config) -> None:
    if not config.getoption("--hypothesis-profile", None):
        hypothesis.settings.load_profile("ci" if IN_CI else "dispatch")
    config.addinivalue_line("markers", "wall_clock: an async test that needs real time (sockets, processes)")


def pytest_collection_finish(session: pytest.Session) -> None:
    # Every async test ends with a collection; what was imported until now need not be looked through each time.
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
