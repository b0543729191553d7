"""glibc's allocator: freed memory that is kept for the next large payload."""

from __future__ import annotations

import ctypes
import os
import sys

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_LARGEST_BLOCK = 32 * 1024 * 1024
"""Bytes above which a block has pages of its own: glibc's upper limit of this threshold."""
_KEPT = 64 * 1024 * 1024
"""Freed bytes that the process keeps: several of the largest replies in flight."""
_OWN_SETTINGS = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")


def keep_freed_memory() -> bool:
    """Keep up to 64 MiB of freed memory in the process, where its allocator is glibc's. Idempotent.

    Without it, glibc returns the memory of a large payload to the kernel and fetches it page by page for the next one: that
    is half of the processor time of replies of 100 kB. Settings of the user's environment are left as they are.

    Returns:
        Whether the thresholds are set.
    """
    is_set_by_user = any(name in os.environ for name in _OWN_SETTINGS) or "malloc" in os.environ.get(
        "GLIBC_TUNABLES", ""
    )
    if is_set_by_user or not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # another C library
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST_BLOCK)) and bool(mallopt(_M_TRIM_THRESHOLD, _KEPT))
