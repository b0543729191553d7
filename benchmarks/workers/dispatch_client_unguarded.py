"""The dispatch client without guards: the baseline for their cost."""

from __future__ import annotations

from functools import partial

from benchmarks.workers.channel import run_client
from benchmarks.workers.dispatch_client import connect

NONE = {"retry": 1, "breaker": None, "bulkhead": None}

if __name__ == "__main__":
    run_client(partial(connect, policy=NONE))
