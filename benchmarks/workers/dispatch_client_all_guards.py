"""The dispatch client with every guard that adds cost to a call: the default ones, and rate limits of tool and user."""

from __future__ import annotations

from functools import partial

from benchmarks.workers.channel import run_client
from benchmarks.workers.dispatch_client import GUARDED, connect

ALL = {**GUARDED, "rate-limit": "1000000/s", "user-rate-limit": "1000000/s"}

if __name__ == "__main__":
    run_client(partial(connect, policy=ALL))
