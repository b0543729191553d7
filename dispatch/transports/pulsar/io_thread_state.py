"""Threads of pulsar-client keep their Python thread state from one callback to the next.

They are no threads of Python's: pybind11 makes a thread state for each callback and throws it away after it, which takes an
mmap, a munmap and a flush of every processor's address cache. A call has two callbacks (a receipt, a reply) and so has a
request served: about 20 µs of 80 to 120 µs a call.
"""

from __future__ import annotations

import ctypes
import threading

_kept = threading.local()


def keep_thread_state() -> None:
    """Keep the running thread's state for as long as the thread lives. Cheap to call again; called in each callback.

    It costs some 20 kB a thread, which stay when the thread has ended: two threads a connection, two more a reconnect.
    """
    try:
        _kept.already  # noqa: B018 - a thread state that is new has no attributes in here
    except AttributeError:
        _kept.already = True
        # One more reference, that is never given back. The state exists and is the running one: this only counts.
        ctypes.pythonapi.PyGILState_Ensure()
