"""Python functions as tools: :func:`tool`, :func:`provide`, :class:`Functions` and :class:`ToolPackage`."""

from dispatch.functions.schema import tool
from dispatch.functions.served import provide
from dispatch.functions.sources import Functions, ToolPackage

__all__ = ["Functions", "ToolPackage", "provide", "tool"]
