"""Fixtures for tests of agents and tool services (docs/how-to/test-an-agent.md); pytest finds them in the installed package.

The module is beside the package, not in it, because pytest imports it in every run, also of projects that do not use it:
dispatch is imported only when a test uses a fixture.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import dispatch
    from dispatch.testing import EmbeddedBroker, FaultInjector


@pytest.fixture
def fault_injector() -> FaultInjector:
    """Return the faults of this test's dispatchers, none at first: ``fault_injector.inject(Faults(drop=0.1))``."""
    from dispatch.testing import FaultInjector

    return FaultInjector()


@pytest.fixture
def dispatch_broker(fault_injector: FaultInjector) -> EmbeddedBroker:
    """Return an embedded broker of this test's own, with ``serve()``, ``connect()`` and ``url``."""
    from dispatch.testing import EmbeddedBroker

    return EmbeddedBroker(fault_injector)


@pytest.fixture
def make_dispatcher(
    dispatch_broker: EmbeddedBroker,
) -> Callable[..., AbstractAsyncContextManager[dispatch.Dispatcher]]:
    """Return a factory of dispatchers: ``async with make_dispatcher("tools/", services={"joke": Joke()}) as dispatcher``."""
    return dispatch_broker.connect
