"""The demonstration's catalogue: its services and tools, written as in a folder of descriptors."""

from __future__ import annotations

from typing import Any, Final

from dispatch.catalog import Catalog

WEATHER_TIMEOUT_S: Final = 0.8
"""What the weather service's policy gives a call: little, so that the demonstration can show a timeout."""

SERVICES: Final = ("joke", "calculator", "rag", "story", "archive", "printer", "weather")


def demo_catalog(run: str) -> Catalog:
    """The catalogue for one run; ``run`` is part of its topics' names, so that runs on one broker never meet."""
    services: dict[str, dict[str, Any]] = {name: _service(name, run) for name in SERVICES}
    services["joke"]["config-params"] = [{"name": "style"}]
    services["rag"]["config-params"] = [{"name": "collection", "required": True}]
    services["weather"]["policy"] = {"timeout": WEATHER_TIMEOUT_S}
    services["printer"]["policy"] = {"retry": 1}  # so that a caller is seen to be told to come back
    question = _text("question", "A whole question.")
    tools = [
        _tool("tell-joke", "joke", "Tell one short joke about a topic.", _text("topic", "One word."), style="pun"),
        _tool(
            "calculate",
            "calculator",
            "Work out an arithmetic expression exactly.",
            _text("expression", "For example: (17.5 + 3) * 12 / 4"),
        ),
        _tool("query-products", "rag", "Answer a question about products.", question, collection="products"),
        _tool("query-customers", "rag", "Answer a question about customers.", question, collection="customers"),
        _tool("tell-story", "story", "Tell a short story, piece by piece.", _text("subject", "Who it is about.")),
        _tool(
            "search-archive",
            "archive",
            "Search the archive. The older the year, the longer it takes.",
            {"name": "year", "type": "integer", "description": "For example: 2020"},
        ),
        _tool("print-label", "printer", "Print a label. There is one printer.", _text("text", "What it says.")),
        _tool("weather", "weather", "Tell the weather of a place.", _text("place", "A town.")),
    ]
    return Catalog.of(services.values(), tools)


def _service(name: str, run: str) -> dict[str, Any]:
    return {
        "id": f"{name}-service",
        "request-queue": f"non-persistent://tg/request/{run}-{name}",
        "response-queue": f"non-persistent://tg/response/{run}-{name}",
    }


def _tool(name: str, service: str, description: str, *arguments: dict[str, Any], **config: str) -> dict[str, Any]:
    return {
        "type": "tool-service",
        "name": name,
        "description": description,
        "service": f"{service}-service",
        "arguments": list(arguments),
        **config,
    }


def _text(name: str, description: str) -> dict[str, Any]:
    return {"name": name, "type": "string", "description": description}
