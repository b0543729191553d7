"""docs/reference/admin-api.md has exactly the fields that the endpoint answers."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest

from dispatch import DispatchError
from tests.docs.pages import ROOT, blocks
from tests.helpers.admin_endpoint import observed

pytestmark = pytest.mark.wall_clock
PAGE = ROOT / "docs" / "reference" / "admin-api.md"


async def test_every_field_is_documented_and_every_documented_field_is_there() -> None:
    async with observed() as it:
        with contextlib.suppress(DispatchError):
            await it.dispatcher.call("price", {"item": "bad"}, user="alice")
        tool, call = await it.get("/api/tools/price"), await it.get("/api/calls/1")
        (tools, calls) = await it.get("/api/tools"), await it.get("/api/calls")
        answers: dict[str, Any] = {
            "uptime": await it.get("/api/process"),
            "circuit": tools[0],
            "history": tool,
            "concurrency": (await it.get("/api/instances"))[0],
            "until": (await it.get("/api/circuits"))[0],
            "rtt": (await it.get("/api/sessions"))[0],
            "last": (await it.get("/api/users"))[0],
            "outcome": calls[0],
            "trail": call,
            "since": (await it.get("/api/sources"))[0],
            "url": (await it.get("/api/peers"))[0],
        }
        base = {"history": set(tools[0]), "trail": set(calls[0])}
        for block in blocks(PAGE):
            if block.language != "json":
                continue
            documented = json.loads(block.code)
            if "event" in documented:  # tests/unit/telemetry/test_events.py
                continue
            name = next(name for name in ("trail", "history", *answers) if name in documented)
            assert set(answers[name]) - base.get(name, set()) == set(documented), name
