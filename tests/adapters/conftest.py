"""Which frameworks are tested: those that are installed. ``make adapters`` has an environment for each; the ones that go
together with the development tools are among these."""

from __future__ import annotations

import importlib.util
from typing import Final

LIBRARIES: Final = {"langchain": "langchain", "pydantic_ai": "pydantic_ai", "openai_agents": "agents"}
"""Framework, as its test and its module in ``dispatch.adapters`` are named → its library."""

collect_ignore = [f"test_{name}.py" for name, library in LIBRARIES.items() if importlib.util.find_spec(library) is None]
