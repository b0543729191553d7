"""dispatch: resilient tool dispatch between AI agents and their tool services on Apache Pulsar.

async with dispatch.connect("pulsar://localhost:6650", catalog="tools/") as dispatcher:
    text = await dispatcher.call("tell-joke", {"topic": "cats"}, user="alice", timeout=5)

Names and packages are imported on their first use. ``__init__.pyi`` has the names for type checkers.
"""

import importlib
import sys

# The command line begins here. So nothing is imported that takes time (typing): Ctrl-C meanwhile would show a traceback.

if sys.version_info < (3, 11):  # noqa: UP036 - pip refuses an older Python, but one that runs in a checkout was not asked
    raise ImportError(
        f"dispatch needs Python 3.11 or newer, and {sys.executable} is {sys.version.split()[0]}: "
        "create an environment with a newer one, such as python3.11 -m venv .venv"
    )

__version__ = "0.1.0"

_PACKAGES = ("adapters", "calling", "mcp", "results", "schemas", "search", "testing", "toolkit")
_NAMES = {
    "admin": ("Admin",),
    "announcements": ("Announce",),
    "announcements.source": ("Announced",),
    "announcements.trust": ("Trust",),
    "calls.local": ("CallContext",),
    "catalog": ("Catalog", "CatalogError", "Folder"),
    "dispatcher": ("BoundTool", "Dispatcher", "Found", "connect"),
    "errors": (
        *("CallTimeoutError", "DispatchError", "InvalidArgumentsError", "Origin", "Outcome"),
        *("RejectedError", "ThrottledError", "ToolError", "TransportError"),
    ),
    "functions": ("Functions", "ToolPackage", "provide"),
    "functions.schema": ("tool",),
    "mcp.sources": ("McpServers", "TrustGraphMcpTools"),
    "permissions": ("Grants", "GrantsError"),
    "policy": (
        *("Annotations", "Balancing", "Breaker", "Bulkhead", "OutlierDetection"),
        *("Policy", "PolicyError", "RateLimit", "Retry", "Slo"),
    ),
    "results": ("CallResult",),
    "server": ("ToolServer", "serve"),
    "serving.tool_service": ("ToolService",),
    "telemetry.events": (
        *("ActionTaken", "BrokerChanged", "CatalogChanged", "ChangeHeld", "CircuitChanged", "Event"),
        *("InstanceChanged", "ItemRefused", "ItemShadowed", "SourceChanged"),
    ),
    "telemetry.observers": ("Telemetry",),
    "transports": ("Security",),
    "trustgraph.client": ("ToolServiceClient", "WrappedClient", "wrap"),
    "trustgraph.config": ("TrustGraphConfig",),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted(["__version__", *_MODULES])


def __getattr__(name: str) -> object:
    if name in _PACKAGES:
        return importlib.import_module(f"dispatch.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module 'dispatch' has no attribute '{name}'")
    value = globals()[name] = getattr(importlib.import_module(f"dispatch.{_MODULES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *_PACKAGES})
