"""The demo's catalogue: services and tools, in the notation of descriptor files."""

from __future__ import annotations

from typing import Any, Final

from dispatch.catalog import Catalog
from dispatch.devtools.demo.time_scale import USER_RATE, TimeScale

WEATHER_TIMEOUT_S: Final = 0.8
"""Timeout of a call of the weather service: short, to show a timeout."""

RATES_TIMEOUT_S: Final = 0.4
"""Timeout of a call of the rates service: its callers wait this long until its circuit breaker opens."""
TRANSLATE_ATTEMPT_S: Final = 0.4
"""Attempt timeout of a translation, after which another instance is tried: ten times its usual duration."""

SERVICES: Final = (
    *("joke", "calculator", "rag", "story", "archive", "printer", "weather"),
    *("translate", "rates", "ledger", "search"),
)


def demo_catalog(run: str, time_scale: TimeScale) -> Catalog:
    """Build the catalogue of one run.

    Args:
        run: part of the topic names, which separates runs on one broker.
        time_scale: the times of the policies.
    """
    services: dict[str, dict[str, Any]] = {name: _service(name, run) for name in SERVICES}
    services["joke"]["config-params"] = [{"name": "style"}]
    services["rag"]["config-params"] = [{"name": "collection", "required": True}]
    services["weather"]["policy"] = {"timeout": WEATHER_TIMEOUT_S}
    services["printer"]["policy"] = {"retry": 1}  # a throttled call reaches its caller instead of being retried
    services["translate"]["policy"] = {
        "attempt-timeout": TRANSLATE_ATTEMPT_S,
        "outlier-detection": {
            "consecutive-failures": 3,
            "base-ejection-time": time_scale.ejection_time,
            "slow-start-window": time_scale.slow_start_window,
        },
    }
    services["rates"]["policy"] = {
        "timeout": RATES_TIMEOUT_S,
        "breaker": {"consecutive-failures": 3, "open-duration": time_scale.open_duration, "half-open-calls": 1},
    }
    services["search"]["policy"] = {"user-rate-limit": USER_RATE.as_document(), "retry": 1}
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
        _tool("tell-story", "story", "Tell a short story as a stream.", _text("subject", "Its main character.")),
        _tool(
            "search-archive",
            "archive",
            "Search the archive. The older the year, the longer it takes.",
            {"name": "year", "type": "integer", "description": "For example: 2020", "required": True},
        ),
        _tool("print-label", "printer", "Print a label. There is one printer.", _text("text", "Text on the label.")),
        _tool("weather", "weather", "Tell the weather of a place.", _text("place", "A town.")),
        {
            # Read-only: a slow attempt may be retried at another instance.
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
    return {"name": name, "type": "string", "description": description, "required": True}
