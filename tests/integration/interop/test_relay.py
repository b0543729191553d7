"""``dispatch relay`` between TrustGraph's published client and its published ``DynamicToolService``, both unmodified."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dispatch.relay import Relay, RelayConfig
from tests.integration.interop.conftest import TheirService
from tests.integration.interop.peers import TIMEOUT_S, request_topic, response_topic, their_client
from tests.integration.interop.tool_behaviour import PREFIX

pytestmark = pytest.mark.pulsar


def write_config(folder: Path, url: str, topic: str, *instances: str, tool: Any = None, **keys: Any) -> Path:
    """Write a relay's configuration and its catalogue: a service on the public ``topic``, and one tool."""
    service = {
        "id": "peer",
        "request-queue": request_topic(topic),
        "response-queue": response_topic(topic),
        "config-params": [{"name": "prefix"}],
        "instances": [
            {"id": each, "request-queue": request_topic(each), "response-queue": response_topic(each)}
            for each in instances
        ],
    }
    described = {"type": "tool-service", "name": "join", "description": "Joins.", "service": "peer", **PREFIX}
    for path, raw in (
        ("tools/tool-service/peer.json", service),
        ("tools/tool/join.json", described | (tool or {})),
        ("relay.json", {"broker": url, "catalog": ["tools"], **keys}),
    ):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(json.dumps(raw))
    return folder / "relay.json"


async def test_a_published_client_reaches_a_published_service(
    url: str, topic: str, their_service: TheirService, tmp_path: Path
) -> None:
    config = RelayConfig.load(write_config(tmp_path, url, topic, their_service.topic))
    async with Relay(config) as relay, their_client(url, topic) as client:
        assert await client.call(PREFIX, {"join": "a"}, timeout=TIMEOUT_S) == "customers|a"
        assert await client.call({"prefix": "x"}, {"join": "b"}, timeout=TIMEOUT_S) == "x|b"
        with pytest.raises(RuntimeError, match="no customer"):
            await client.call(PREFIX, {"refuse": "no customer"}, timeout=TIMEOUT_S)
        assert relay.servers[0].requests == 3
