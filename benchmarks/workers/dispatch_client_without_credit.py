"""Our client, which does not say that it acknowledges: what it is with credit, compared with this, is what credit costs.

Everything else is as ever: an answer that gets lost is asked for again.
"""

from __future__ import annotations

from typing import Any

from benchmarks.workers.channel import run_client
from benchmarks.workers.dispatch_client import connect
from dispatch.routing import channel as routes


class RouteWithoutCredit(routes.Channel):
    """A route whose requests carry no credit."""

    @property
    def acknowledged(self) -> bool:
        """No."""
        return False

    @acknowledged.setter
    def acknowledged(self, _value: Any) -> None:
        pass


if __name__ == "__main__":
    routes.Channel = RouteWithoutCredit  # type: ignore[misc] # the one place where routes are made looks here
    run_client(connect)
