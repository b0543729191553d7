"""TrustGraph's published ``DynamicToolService``, started by TrustGraph's own launcher."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

from trustgraph.base import DynamicToolService

from benchmarks.workers.channel import Channel


class Echo(DynamicToolService):  # type: ignore[misc] # the package has no types
    """Answers at once, and reports when it is ready."""

    channel: Channel
    answer: str

    async def start(self) -> None:
        """Start as usual, and report readiness to the driver."""
        await super().start()
        self.channel.ready()

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any]) -> str:
        """The tool."""
        return self.answer


def _end_when_released(channel: Channel) -> None:
    while channel.read() is not None:
        channel.say({})  # nothing to report
    # The launcher cannot be stopped and restarts a processor that ends.
    os._exit(0)


if __name__ == "__main__":
    Echo.channel = Channel()
    spec = Echo.channel.spec()
    Echo.answer = spec.text
    threading.Thread(target=_end_when_released, args=(Echo.channel,), daemon=True).start()
    # The default metrics port is fixed and the default log collector is an unknown host; flags of the launcher change both.
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
