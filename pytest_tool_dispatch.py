"""Fixtures for tests of agents and tool services (docs/how-to/test-an-agent.md); pytest finds them in the installed package.

It stands beside the package and not in it, because pytest imports it in every run, those of people who test other things
too: nothing of dispatch is imported until a test asks for a fixture.
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
    """Faults on the connections of this test's dispatchers: none at first; ``fault_injector.inject(Faults(drop=0.1))``."""
    from dispatch.testing import FaultInjector

    return FaultInjector()


@pytest.fixture
def dispatch_broker(fault_injector: FaultInjector) -> EmbeddedBroker:
    """An embedded broker of this test's own: its ``serve()``, ``connect()`` and ``url``."""
    from dispatch.testing import EmbeddedBroker

    return EmbeddedBroker(fault_injector)


@pytest.fixture
def make_dispatcher(
    dispatch_broker: EmbeddedBroker,
) -> Callable[..., AbstractAsyncContextManager[dispatch.Dispatcher]]:
    """Makes dispatchers on it: ``async with make_dispatcher("tools/", services={"joke": Joke()}) as dispatcher``."""
    return dispatch_broker.connect
