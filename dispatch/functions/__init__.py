"""Python functions as tools: :func:`tool`, :class:`Functions` and :class:`ToolPackage`."""

from dispatch.functions.schema import tool
from dispatch.functions.sources import Functions, ToolPackage

__all__ = ["Functions", "ToolPackage", "tool"]
