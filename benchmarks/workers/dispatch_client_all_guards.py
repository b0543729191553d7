"""Our client with every guard that costs a call anything: the default ones, and rates, of the tool and of each user."""

from __future__ import annotations

from functools import partial

from benchmarks.workers.channel import run_client
from benchmarks.workers.dispatch_client import GUARDED, connect

ALL = {**GUARDED, "rate-limit": "1000000/s", "user-rate-limit": "1000000/s"}

if __name__ == "__main__":
    run_client(partial(connect, policy=ALL))
