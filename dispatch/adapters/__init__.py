"""Tools of a dispatcher for the APIs of models, and for agent frameworks: one module for each, and one extra."""

import importlib
from typing import Any, Final

from dispatch.adapters.dialects import Style
from dispatch.adapters.models import Specs, execute, specs
from dispatch.results import ToolAnswer

__all__ = ["FRAMEWORKS", "Specs", "Style", "ToolAnswer", "execute", "specs"]

FRAMEWORKS: Final = ("langchain", "pydantic_ai", "openai_agents", "google_adk", "agent_framework", "crewai")
"""Modules for frameworks, each imported when it is used."""


def __getattr__(name: str) -> Any:
    """Import the module for a framework; an ImportError names the extra that is missing."""
    if name in FRAMEWORKS:
        return importlib.import_module(f"dispatch.adapters.{name}")
    raise AttributeError(f"module 'dispatch.adapters' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *FRAMEWORKS})  # of which Python's error names a near one
