from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

from dispatch.devtools.localbroker.processes import hold_lock, try_lock


def test_the_second_waits_says_so_and_then_gets_it(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "lock"
    said: list[str] = []
    waiting, entered = threading.Event(), threading.Event()

    def report(line: str) -> None:
        said.append(line)
        waiting.set()

    def second() -> None:
        with hold_lock(path, waiting="somebody is at work", report=report):
            entered.set()

    with hold_lock(path):
        thread = threading.Thread(target=second)
        thread.start()
        assert waiting.wait(10)
        assert not entered.is_set()
    assert entered.wait(10)
    thread.join()
    assert said == ["somebody is at work"]


def test_without_waiting_it_is_had_or_not(tmp_path: Path) -> None:
    path = tmp_path / "lock"

    with try_lock(path) as first, try_lock(path) as second:
        assert (first, second) == (True, False)
    with try_lock(path) as again:
        assert again


def test_the_kernel_frees_it_when_its_holder_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    script = (
        "import signal, sys, pathlib\n"
        "from dispatch.devtools.localbroker.processes import hold_lock\n"
        "with hold_lock(pathlib.Path(sys.argv[1])):\n"
        "    print('held', flush=True)\n"
        "    signal.pause()\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with try_lock(path) as held:
            assert not held
        holder.kill()
        holder.wait()

        with try_lock(path) as held:
            assert held
