"""Runs the demo with another policy of one service."""

from __future__ import annotations

from typing import Any

import pytest

from dispatch.catalog import Catalog
from dispatch.devtools.demo import Demo, Summary, world
from dispatch.devtools.demo.world import MIN_SECONDS


async def run_with_policy(monkeypatch: pytest.MonkeyPatch, service: str, **policy: Any) -> Summary:
    """Run the demo with a policy in which ``policy`` is laid over that of ``service``; None removes a key."""
    of = Catalog.of

    def changed(services: Any, tools: Any) -> Catalog:
        found = list(services)
        (chosen,) = (each for each in found if each["id"] == service)
        chosen["policy"] = {
            key: value
            for key, value in {
                **chosen.get("policy", {}),
                **{k.replace("_", "-"): v for k, v in policy.items()},
            }.items()
            if value is not None
        }
        return of(found, tools)

    monkeypatch.setattr(world.Catalog, "of", changed)
    return await Demo("memory://", MIN_SECONDS).run()
