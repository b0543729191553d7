"""TrustGraph's published ``DynamicToolService`` as a process of its own, started by TrustGraph's own launcher."""

from __future__ import annotations

from typing import Any

from trustgraph.base import DynamicToolService

from tests.integration.interop.tool_behaviour import act


class Peer(DynamicToolService):
    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any]) -> Any:
        return "theirs" if arguments.get("who") else act(config, arguments)


if __name__ == "__main__":
    Peer.launch("peer", __doc__ or "")
