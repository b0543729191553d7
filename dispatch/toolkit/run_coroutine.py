"""Runs a coroutine from synchronous code, also while an event loop runs in this thread."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Result = TypeVar("Result")


def run_coroutine(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of ``coroutine``. It runs on an event loop of its own in another thread, with the context variables
    of the caller; the calling thread waits for it."""
    context = contextvars.copy_context()
    with ThreadPoolExecutor(1, thread_name_prefix="dispatch-toolkit") as executor:
        return executor.submit(context.run, asyncio.run, coroutine).result()
