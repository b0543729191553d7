from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from benchmarks.harness.broker import suspend
from dispatch.devtools.localbroker import ManagedProcess, _identity_from_ps, process_identity, spawn
from tests.unit.devtools.fakes import Ending

FOREVER = ["sleep", "600"]

pytestmark = pytest.mark.process

# An owner in a process of its own: it starts a child as told, prints the two process ids, and waits to be killed.
OWNER = """
import os, signal, sys, threading
from pathlib import Path
from dispatch.devtools.localbroker import spawn
folder, mode = Path(sys.argv[1]), sys.argv[2]
def say(child):
    print(child.pid, child.watchdog_pid or 0, flush=True)
if mode == "detached":
    say(spawn(["sleep", "600"], log=folder / "log", detached=True))
    sys.exit()
if mode == "detached-unfinished":
    def never_returns(child):
        say(child)
        signal.pause()
    spawn(["sleep", "600"], log=folder / "log", detached=True, on_spawn=never_returns)
child = spawn(["sleep", "600"], log=folder / "log", remove=folder / "data",
              on_owner_death=["touch", str(folder / "cleaned")])
if mode == "forked" and os.fork() == 0:
    signal.pause()  # lives on, with a copy of the owner's end of the pipe
say(child)
signal.pause()
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def start_owner(owner: list[subprocess.Popen[str]], folder: Path, mode: str) -> tuple[int, int]:
    (folder / "data").mkdir()
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", OWNER, str(folder), mode],
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    owner.append(process)
    child, watchdog = process.stdout.readline().split()
    return int(child), int(watchdog)


def test_a_child_is_known_signalled_and_ended(log: Path) -> None:
    child = spawn(FOREVER, log=log)

    assert child.is_alive()
    assert child.returncode is None
    assert os.getsid(child.pid) != os.getsid(0)  # a Ctrl-C in our terminal does not reach it

    child.kill()

    assert not child.is_alive()
    assert child.returncode == 128 + signal.SIGKILL
    assert not child.send_signal(signal.SIGTERM)
    child.kill()  # nothing more happens


def test_an_exit_status_and_both_outputs_are_kept(log: Path) -> None:
    child = spawn(["sh", "-c", "echo out; echo err >&2; exit 7"], log=log)

    assert child.wait(10)
    child.kill()
    assert child.returncode == 7
    assert sorted(log.read_text().split()) == ["err", "out"]


def test_a_command_that_is_not_there_says_so_in_the_log(log: Path) -> None:
    child = spawn(["/no/such/program"], log=log)

    assert child.wait(10)
    child.kill()
    assert child.returncode == 127
    assert "cannot run /no/such/program" in log.read_text()


def test_who_ignores_sigterm_is_killed_after_the_grace(log: Path, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    deaf = "import pathlib, signal, sys\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    deaf += "pathlib.Path(sys.argv[1]).write_text('deaf')\nsignal.pause()"
    child = spawn([sys.executable, "-c", deaf, str(fifo)], log=log)
    assert fifo.read_text() == "deaf"

    child.terminate(grace=0.1)

    assert child.returncode == 128 + signal.SIGKILL


def test_a_paused_one_hears_sigterm_all_the_same(log: Path) -> None:
    child = spawn(FOREVER, log=log)
    child.send_signal(signal.SIGSTOP)

    child.terminate(grace=10)

    assert child.returncode == 128 + signal.SIGTERM


def states(pid: int) -> set[str]:
    """Of its threads, as ``ps`` shows them."""
    return {stat.read_text().rpartition(")")[2].split()[0] for stat in Path(f"/proc/{pid}/task").glob("*/stat")}


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="only Linux tells of threads")
def test_a_stopped_one_stands_still_with_all_its_threads(log: Path) -> None:
    busy = (
        "import threading\n"
        "work = lambda: all(sum(range(9999)) for _ in iter(int, 1))\n"
        "for _ in range(8): threading.Thread(target=work).start()"
    )
    child = spawn([sys.executable, "-c", busy], log=log)
    try:
        while len(list(Path(f"/proc/{child.pid}/task").iterdir())) < 9:
            time.sleep(0.01)
        for _ in range(20):
            assert suspend(child)
            assert states(child.pid) == {"T"}
            assert child.send_signal(signal.SIGCONT)
    finally:
        child.kill()
    assert not suspend(child)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="only Linux tells of children")
def test_a_detached_one_may_end_before_it_is_let_go(log: Path) -> None:
    def children() -> set[int]:
        return {int(pid) for each in Path("/proc/self/task").glob("*/children") for pid in each.read_text().split()}

    before = children()

    def ended(child: ManagedProcess) -> None:
        assert child.wait(10)
        while any(states(watchdog) != {"Z"} for watchdog in children() - before):
            time.sleep(0.01)

    assert not spawn(["true"], log=log, detached=True, on_spawn=ended).is_alive()


def test_a_child_does_not_depend_on_the_thread_that_started_it(log: Path) -> None:
    children: list[ManagedProcess] = []
    thread = threading.Thread(target=lambda: children.append(spawn(FOREVER, log=log)))
    thread.start()
    thread.join()
    [child] = children

    try:
        assert not child.wait(1.2)  # longer than the watchdog's look at its parent
    finally:
        child.kill()


@pytest.mark.parametrize("mode", ["plain", "forked"])
def test_it_ends_with_an_owner_that_is_killed_and_its_data_go(
    owner: list[subprocess.Popen[str]], tmp_path: Path, mode: str
) -> None:
    child, watchdog = start_owner(owner, tmp_path, mode)
    child_end, watchdog_end = Ending(child), Ending(watchdog)

    owner[0].kill()

    assert child_end.within(10)
    assert watchdog_end.within(10)
    assert not (tmp_path / "data").exists()
    assert (tmp_path / "cleaned").exists()


def test_it_ends_even_if_owner_and_watchdog_are_killed_at_once(
    owner: list[subprocess.Popen[str]], tmp_path: Path
) -> None:
    child, watchdog = start_owner(owner, tmp_path, "plain")
    child_end = Ending(child)

    os.kill(watchdog, signal.SIGKILL)
    owner[0].kill()

    assert child_end.within(10)


def test_a_detached_one_outlives_its_starter(owner: list[subprocess.Popen[str]], tmp_path: Path) -> None:
    pid, _ = start_owner(owner, tmp_path, "detached")
    assert owner[0].wait(10) == 0

    child = ManagedProcess(pid, process_identity(pid))
    try:
        assert child.is_alive()
        assert child.watchdog_pid is None
    finally:
        child.terminate(grace=10)
    assert not child.is_alive()


def test_a_detached_one_is_not_lost_when_its_starter_is_killed_before_it_is_known(
    owner: list[subprocess.Popen[str]], tmp_path: Path
) -> None:
    child, _ = start_owner(owner, tmp_path, "detached-unfinished")
    child_end = Ending(child)

    owner[0].kill()

    assert child_end.within(10)


@pytest.mark.parametrize("detached", [False, True])
def test_an_interrupted_start_leaves_no_process(log: Path, detached: bool) -> None:
    pids: list[int] = []

    def interrupt(child: ManagedProcess) -> None:
        pids.append(child.pid)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        spawn(FOREVER, log=log, detached=detached, on_spawn=interrupt)

    assert process_identity(pids[0]) is None


def test_an_identity_stays_and_ends_with_its_process() -> None:
    with subprocess.Popen(["sleep", "600"]) as process:
        identity = process_identity(process.pid)
        assert identity is not None
        assert process_identity(process.pid) == identity
        assert process_identity(os.getpid()) != identity

        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # ended, and still a zombie
        assert process_identity(process.pid) is None
    assert process_identity(process.pid) is None


FIRST_THREAD_ENDS = """
import ctypes, os, sys, threading
from pathlib import Path
def other():
    while Path("/proc/self/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        pass
    print("its first thread has ended", flush=True)
    sys.stdin.read()
    os._exit(0)
threading.Thread(target=other).start()
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)  # exit, of this thread only
"""


def test_a_process_that_still_ends_has_not_ended() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", FIRST_THREAD_ENDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout.readline() == b"its first thread has ended\n"

        child = ManagedProcess(process.pid, process_identity(process.pid))
        assert child.is_alive()  # it looks like a zombie, and yet holds its ports
        assert not child.wait(0.05)

        process.stdin.close()
        assert child.wait(10)


def test_another_process_of_the_same_id_is_not_ours() -> None:
    assert not ManagedProcess(os.getpid(), "an earlier boot:12345").is_alive()
    assert not ManagedProcess(os.getpid(), "an earlier boot:12345").send_signal(signal.SIGTERM)


def test_an_identity_where_there_is_no_proc() -> None:
    with subprocess.Popen(["sleep", "600"]) as process:
        identity = _identity_from_ps(process.pid)
        assert identity is not None
        assert _identity_from_ps(process.pid) == identity
        process.kill()
    assert _identity_from_ps(process.pid) is None
