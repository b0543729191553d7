"""Calls that block, in threads that nobody has to wait for."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from dispatch._internal import DaemonThreads
from tests.helpers.echo_service import ROOT

WAIT_S = 30.0


def test_future_carries_result_and_exception() -> None:
    threads = DaemonThreads("test-blocking")
    assert threads.submit(divmod, 7, 2).result(WAIT_S) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        threads.submit(divmod, 7, 0).result(WAIT_S)


def test_blocked_call_does_not_block_others() -> None:
    threads = DaemonThreads("test-blocking")
    never = threading.Event()
    stuck = [threads.submit(never.wait) for _ in range(20)]
    assert threads.submit(threading.current_thread).result(WAIT_S).name == "test-blocking"
    never.set()
    assert all(each.result(WAIT_S) for each in stuck)


def test_interpreter_exits_despite_a_blocked_thread() -> None:
    program = (
        "import threading; from dispatch._internal import DaemonThreads; "
        "DaemonThreads('stuck').submit(threading.Event().wait); print('ends')"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "ends\n", "")
