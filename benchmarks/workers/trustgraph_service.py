"""TrustGraph's published ``DynamicToolService``, started by TrustGraph's own launcher."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

from trustgraph.base import DynamicToolService

from benchmarks.workers.channel import Channel


class Echo(DynamicToolService):  # type: ignore[misc] # the package has no types
    """Answers; and says when it can."""

    channel: Channel
    answer: str

    async def start(self) -> None:
        """Start, as ever, and tell the driver."""
        await super().start()
        self.channel.ready()

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any]) -> str:
        """The tool."""
        return self.answer


def _end_when_released(channel: Channel) -> None:
    while channel.read() is not None:
        pass
    # Its launcher has no way to be asked to stop, and restarts what ends; nothing of it must be kept.
    os._exit(0)


if __name__ == "__main__":
    Echo.channel = Channel()
    spec = Echo.channel.spec()
    Echo.answer = spec.text
    threading.Thread(target=_end_when_released, args=(Echo.channel,), daemon=True).start()
    # Its metrics port is fixed and its log collector is a host that is not there: both are flags of its own launcher.
    sys.argv[1:] = [
        "--topic",
        spec.topic,
        "--id",
        spec.topic,
        "--pulsar-host",
        spec.url,
        "--no-metrics",
        "--no-loki-enabled",
    ]
    if spec.token is not None:
        sys.argv += ["--pulsar-api-key", spec.token]
    Echo.launch(spec.topic, __doc__ or "")
