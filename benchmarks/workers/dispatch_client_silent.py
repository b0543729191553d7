"""The dispatch client without telemetry: the baseline for the cost of metrics and traces."""

from __future__ import annotations

from functools import partial

from benchmarks.workers.channel import run_client
from benchmarks.workers.dispatch_client import connect
from dispatch.telemetry.observers import SILENT

if __name__ == "__main__":
    run_client(partial(connect, telemetry=SILENT))
