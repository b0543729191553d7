"""Runs of the shortest demo on virtual time: the one that every test may look at, and others with other policies."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from dispatch.catalog import Catalog
from dispatch.devtools.demo import MIN_SECONDS, Demo, Summary
from tests.helpers.clock import run


@cache
def run_demo() -> tuple[Demo, Summary]:
    """Run the demo as it is, once for all tests of this process."""
    demo = Demo("memory://", MIN_SECONDS)
    return demo, run(demo.run)


async def run_with_policies(monkeypatch: pytest.MonkeyPatch, **policies: dict[str, Any]) -> Summary:
    """Run the demo with policies laid over those of services; ``search`` is ``search-service``, None removes a key."""
    of = Catalog.of

    def changed(services: Any, tools: Any) -> Catalog:
        found = list(services)
        for each in found:
            policy = each.get("policy", {}) | policies.get(each["id"].removesuffix("-service"), {})
            each["policy"] = {key: value for key, value in policy.items() if value is not None}
        return of(found, tools)

    monkeypatch.setattr(Catalog, "of", changed)
    return await Demo("memory://", MIN_SECONDS).run()
