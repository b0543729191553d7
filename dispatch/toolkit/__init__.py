"""A graph of actions and tools that recommends the tools of the next step, with the names of Chat2Graph. Needs networkx: the
extra ``toolkit``."""

from dispatch._internal import missing_library

try:
    import networkx  # noqa: F401 - all modules of the package need it
except ImportError:
    raise missing_library("dispatch.toolkit", "networkx", "toolkit") from None

from dispatch.calling import FunctionCallResult, FunctionCallStatus
from dispatch.toolkit.drawing import render_graphml, render_mermaid
from dispatch.toolkit.evidence import Evidence, Observation
from dispatch.toolkit.files import Operator
from dispatch.toolkit.graph import (
    Action,
    Graph,
    McpConfig,
    McpService,
    McpTransportConfig,
    McpTransportType,
    Tool,
    ToolConnection,
    ToolGroup,
    ToolGroupConfig,
    ToolGroupType,
    ToolkitWarning,
    ToolPackage,
    ToolType,
)
from dispatch.toolkit.learning import LearnedScore, Learner
from dispatch.toolkit.service import ToolkitService
from dispatch.toolkit.toolkit import Toolkit

__all__ = [
    "Action",
    "Evidence",
    "FunctionCallResult",
    "FunctionCallStatus",
    "Graph",
    "LearnedScore",
    "Learner",
    "McpConfig",
    "McpService",
    "McpTransportConfig",
    "McpTransportType",
    "Observation",
    "Operator",
    "Tool",
    "ToolConnection",
    "ToolGroup",
    "ToolGroupConfig",
    "ToolGroupType",
    "ToolPackage",
    "ToolType",
    "Toolkit",
    "ToolkitService",
    "ToolkitWarning",
    "render_graphml",
    "render_mermaid",
]
