"""TrustGraph's published agents in this process, into which ``dispatch.trustgraph.agent.install`` puts its class."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from trustgraph.agent.orchestrator import service as orchestrator
from trustgraph.agent.react import service, tools

from dispatch.trustgraph import agent

MODULES = (tools, service, orchestrator)


@pytest.fixture
def as_published() -> Iterator[None]:
    """TrustGraph's modules are as before afterwards, and no dispatcher is open."""
    former = [(module, module.ToolServiceImpl) for module in MODULES]
    handlers = [(each.Processor, each.Processor.agent_request) for each in (service, orchestrator)]
    yield
    for module, impl in former:
        module.ToolServiceImpl = impl
    for processor, handler in handlers:
        processor.agent_request = handler
    agent._dispatchers.clear()
    agent._options.clear()
