"""The demonstration's catalogue: its services and tools, written as in a folder of descriptors."""

from __future__ import annotations

from typing import Any, Final

from dispatch.catalog import Catalog
from dispatch.devtools.demo.time_scale import USER_RATE, Pace

WEATHER_TIMEOUT_S: Final = 0.8
"""What the weather service's policy gives a call: little, so that the demonstration can show a timeout."""

RATES_TIMEOUT_S: Final = 0.4
"""The same for the service whose circuit opens: so long its callers wait before it does."""
TRANSLATE_ATTEMPT_S: Final = 0.4
"""How long one attempt of a translation may take, before another instance is asked: ten times what it usually does."""

SERVICES: Final = (
    *("joke", "calculator", "rag", "story", "archive", "printer", "weather"),
    *("translate", "rates", "ledger", "search"),
)


def demo_catalog(run: str, pace: Pace) -> Catalog:
    """The catalogue for one run.

    Args:
        run: part of its topics' names, so that runs on one broker never meet.
        pace: the times of its policies.
    """
    services: dict[str, dict[str, Any]] = {name: _service(name, run) for name in SERVICES}
    services["joke"]["config-params"] = [{"name": "style"}]
    services["rag"]["config-params"] = [{"name": "collection", "required": True}]
    services["weather"]["policy"] = {"timeout": WEATHER_TIMEOUT_S}
    services["printer"]["policy"] = {"retry": 1}  # so that a caller is seen to be told to come back
    services["translate"]["policy"] = {
        "attempt-timeout": TRANSLATE_ATTEMPT_S,
        "health": {"consecutive": 3, "eject-for": pace.eject_for, "slow-start": pace.slow_start},
    }
    services["rates"]["policy"] = {
        "timeout": RATES_TIMEOUT_S,
        "breaker": {"consecutive-failures": 3, "open-duration": pace.open_duration, "half-open-calls": 1},
    }
    services["search"]["policy"] = {"user-rate": USER_RATE.as_document(), "retry": 1}
    question = _text("question", "A whole question.")
    pair = _text("pair", "Two currencies, for example: EUR/USD")
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
        {
            # Read-only: it may be asked of another instance, when one takes too long.
            **_tool("translate", "translate", "Translate a word into Spanish.", _text("word", "An English word.")),
            "read-only": True,
        },
        {**_tool("exchange-rate", "rates", "The rate of this moment.", pair), "category": "money"},
        {**_tool("last-known-rate", "ledger", "The rate of yesterday.", pair), "category": "money"},
        _tool("search-web", "search", "Search the web.", _text("query", "A few words.")),
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
