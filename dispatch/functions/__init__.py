"""Python functions as tools: :func:`tool`, :class:`Functions` and :class:`ToolPackage`."""

from dispatch.functions.decorator import tool
from dispatch.functions.functions import Functions
from dispatch.functions.tool_package import ToolPackage

__all__ = ["Functions", "ToolPackage", "tool"]
