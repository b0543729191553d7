"""The dispatch client without flow control by credit: the baseline for the cost of credit.

Everything else is as ever: an answer that gets lost is asked for again.
"""

from __future__ import annotations

from typing import Any

from benchmarks.workers.channel import run_client
from benchmarks.workers.dispatch_client import connect
from dispatch.routing import channel_registry


class ChannelWithoutCredit(channel_registry.Channel):
    """A channel whose requests carry no credit."""

    @property
    def acknowledged(self) -> bool:
        """Return False: the client announces no credit."""
        return False

    @acknowledged.setter
    def acknowledged(self, _value: Any) -> None:
        pass


if __name__ == "__main__":
    channel_registry.Channel = ChannelWithoutCredit  # type: ignore[misc] # the one place where channels are made looks here
    run_client(connect)
