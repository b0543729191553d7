"""Becomes a program that the kernel kills when the test run dies: ``python die_with_parent.py PROGRAM [ARGUMENT…]``. It
listens to Ctrl-C as ever, even when the run was started in the background, where shells have it ignored."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    prctl = getattr(ctypes.CDLL(None), "prctl", None)  # Linux; elsewhere the fixture that started us ends us
    if prctl is not None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.execv(sys.argv[1], sys.argv[1:])
