"""dispatch: resilient tool dispatch between AI agents and their tool services on Apache Pulsar.

async with dispatch.connect("pulsar://localhost:6650", catalog="tools/") as dispatcher:
    text = await dispatcher.call("tell-joke", {"topic": "cats"}, user="alice", timeout=5)
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dispatch.mcp.sources import McpServers, TrustGraphMcpTools

try:
    from dispatch.calls.local import CallContext
    from dispatch.catalog import Catalog, CatalogError, Folder
    from dispatch.dispatcher import Dispatcher, Found, Tool, connect
    from dispatch.errors import (
        CallTimeoutError,
        DispatchError,
        InvalidArgumentsError,
        Origin,
        Outcome,
        RejectedError,
        ThrottledError,
        ToolError,
        TransportError,
    )
    from dispatch.functions import Functions, ToolPackage, tool
    from dispatch.permissions import Grants, GrantsError
    from dispatch.policy import (
        Annotations,
        Balancing,
        Breaker,
        Bulkhead,
        OutlierDetection,
        Policy,
        PolicyError,
        RateLimit,
        Retry,
        Slo,
    )
    from dispatch.result import CallResult
    from dispatch.serving.server import ToolServer, serve
    from dispatch.serving.tool_service import ToolService
    from dispatch.telemetry.events import (
        CatalogChanged,
        ChangeHeld,
        CircuitChanged,
        Event,
        InstanceChanged,
        ItemRefused,
        ItemShadowed,
        SourceChanged,
    )
    from dispatch.telemetry.observers import Telemetry
    from dispatch.transports import Security
    from dispatch.trustgraph.client import ToolServiceClient, WrappedClient, wrap
    from dispatch.trustgraph.config import TrustGraphConfig
    from dispatch.version import __version__
except KeyboardInterrupt:
    if sys.argv[:1] != ["-m"] and not sys.argv[0].endswith(("/dispatch", "\\dispatch.exe")):
        raise
    # The command line, which is still being imported: Ctrl-C is no fault. "-m" is what Python has there at that moment.
    sys.stderr.write("Interrupted.\n")
    sys.exit(130)

__all__ = [
    "Annotations",
    "Balancing",
    "Breaker",
    "Bulkhead",
    "CallContext",
    "CallResult",
    "CallTimeoutError",
    "Catalog",
    "CatalogChanged",
    "CatalogError",
    "ChangeHeld",
    "CircuitChanged",
    "DispatchError",
    "Dispatcher",
    "Event",
    "Folder",
    "Found",
    "Functions",
    "Grants",
    "GrantsError",
    "InstanceChanged",
    "InvalidArgumentsError",
    "ItemRefused",
    "ItemShadowed",
    "McpServers",
    "Origin",
    "Outcome",
    "OutlierDetection",
    "Policy",
    "PolicyError",
    "RateLimit",
    "RejectedError",
    "Retry",
    "Security",
    "Slo",
    "SourceChanged",
    "Telemetry",
    "ThrottledError",
    "Tool",
    "ToolError",
    "ToolPackage",
    "ToolServer",
    "ToolService",
    "ToolServiceClient",
    "TransportError",
    "TrustGraphConfig",
    "TrustGraphMcpTools",
    "WrappedClient",
    "__version__",
    "connect",
    "serve",
    "tool",
    "wrap",
]


def __getattr__(name: str) -> Any:
    """Import packages, and what needs an extra, on their first use."""
    if name in ("adapters", "calling", "mcp", "toolkit"):
        return importlib.import_module(f"dispatch.{name}")
    if name in ("McpServers", "TrustGraphMcpTools"):
        from dispatch.mcp import sources

        return sources.McpServers if name == "McpServers" else sources.TrustGraphMcpTools
    raise AttributeError(f"module 'dispatch' has no attribute '{name}'")
