"""A graph of actions and tools that recommends the tools of the next step, with the names of Chat2Graph. Needs networkx: the
extra ``toolkit``."""

from dispatch._internal.extras import install_extra

try:
    import networkx  # noqa: F401 - all modules of the package need it
except ImportError:
    raise ImportError(
        f"dispatch.toolkit needs networkx, which is not installed. Install it: {install_extra('toolkit')}"
    ) from None

from dispatch.calling.function_call_result import FunctionCallResult, FunctionCallStatus
from dispatch.toolkit.action import Action
from dispatch.toolkit.drawing.text_formats import render_graphml, render_mermaid
from dispatch.toolkit.files.toolkit_file import Operator
from dispatch.toolkit.graph import Graph
from dispatch.toolkit.learning.evidence import Evidence, Observation
from dispatch.toolkit.learning.learner import LearnedScore, Learner
from dispatch.toolkit.mcp_service import McpConfig, McpService, McpTransportConfig, McpTransportType
from dispatch.toolkit.service import ToolkitService
from dispatch.toolkit.tool import Tool, ToolType
from dispatch.toolkit.tool_group import (
    ToolConnection,
    ToolGroup,
    ToolGroupConfig,
    ToolGroupType,
    ToolkitWarning,
    ToolPackage,
)
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
