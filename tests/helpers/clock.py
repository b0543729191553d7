"""Virtual time for our own tests: what users get as well."""

from __future__ import annotations

import asyncio

from dispatch.testing.clock import START, DeadlockError, VirtualClockLoop, advance, idle, run, virtual_loop

__all__ = ["START", "DeadlockError", "VirtualClockLoop", "advance", "idle", "now", "run", "virtual_loop"]


def now() -> float:
    """Return the time of the running loop, in seconds."""
    return asyncio.get_running_loop().time()
