"""Virtual time for our own tests: what users get as well."""

from __future__ import annotations

from dispatch.testing.clock import START, DeadlockError, VirtualClockLoop, advance, idle, run, virtual_loop

__all__ = ["START", "DeadlockError", "VirtualClockLoop", "advance", "idle", "run", "virtual_loop"]
