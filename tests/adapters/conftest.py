"""Which frameworks are tested: those that are installed. ``make adapters`` has an environment for each; the ones that go
together with the development tools are among these."""

from __future__ import annotations

import importlib.util
from typing import Final

LIBRARIES: Final = {
    "langchain": "langchain",
    "pydantic_ai": "pydantic_ai",
    "openai_agents": "agents",
    "google_adk": "google.adk",
    "agent_framework": "agent_framework",
    "crewai": "crewai",
}
"""Framework, as its test and its module in ``dispatch.adapters`` are named → its library."""


def is_installed(library: str) -> bool:
    """Return whether a library can be imported, without importing it."""
    try:
        return importlib.util.find_spec(library) is not None
    except ModuleNotFoundError:  # the package above it
        return False


collect_ignore = [f"test_{name}.py" for name, library in LIBRARIES.items() if not is_installed(library)]
