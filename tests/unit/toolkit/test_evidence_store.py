"""Evidence in memory and in a file: threads, processes, faults of the disk, killed processes."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatch.toolkit.evidence import Evidence, EvidenceStore
from tests.helpers.run_profile import by_profile

DAY = 86_400.0
EDGE = ("read", "search")
ONE = Evidence(success=1.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "learned.db"


@contextlib.contextmanager
def opened(path: Path | None) -> Iterator[EvidenceStore]:
    store = EvidenceStore(path, DAY, time.time)
    try:
        yield store
    finally:
        store.close()


def successes(store: EvidenceStore, u: str = "read", v: str = "search") -> float:
    evidence = store.get(u, v)
    return 0.0 if evidence is None else evidence.success


def test_two_stores_learn_at_the_same_time(path: Path) -> None:
    with opened(path) as one, opened(path) as two:
        one.record([(EDGE, ONE)])
        two.record([(EDGE, ONE), (EDGE, ONE)])
        for store in (one, two, one):
            store.flush()
        assert successes(one) == pytest.approx(3, rel=1e-3)
        assert successes(two) == pytest.approx(3, rel=1e-3)


def test_a_store_without_a_file_has_no_thread() -> None:
    before = threading.active_count()
    with opened(None) as store:
        store.record([(EDGE, ONE)])
        store.flush()
        assert successes(store) == pytest.approx(1, rel=1e-3)
        assert threading.active_count() == before
        store.reset()
        assert store.get(*EDGE) is None


def test_a_frozen_store_does_not_learn_from_others(path: Path) -> None:
    with opened(path) as frozen, opened(path) as other:
        frozen.freeze()
        other.record([(EDGE, ONE)])
        other.flush()
        frozen.flush()
        assert frozen.get(*EDGE) is None
        frozen.unfreeze()
        frozen.flush()
        assert successes(frozen) == pytest.approx(1, rel=1e-3)


def test_a_reset_concerns_the_file_and_other_processes(path: Path) -> None:
    with opened(path) as one, opened(path) as two:
        one.record([(EDGE, ONE), (("read", "open"), ONE), (("write", "save"), ONE)])
        one.flush()
        two.flush()
        two.reset([EDGE, ("read", "open")])
        two.record([(("read", "open"), Evidence(tool_error=1.0))])
        two.flush()
        one.flush()
        found = {(u, v): tuple(map(round, evidence)) for u, v, evidence in one.read_all()}
        assert found == {("read", "open"): (0, 1, 0), ("write", "save"): (1, 0, 0)}
        two.record([(("read", "open"), ONE)])
        one.reset()
        one.flush()
        two.flush()
        assert successes(two, "read", "open") <= 1.0
        assert two.get("write", "save") is None


def test_evidence_of_a_clock_that_is_ahead_is_not_multiplied(path: Path) -> None:
    ahead = EvidenceStore(path, DAY, lambda: time.time() + 50 * DAY)
    ahead.record([(EDGE, ONE)])
    ahead.close()
    with opened(path) as store:
        store.flush()
        assert successes(store) == pytest.approx(1, rel=1e-3)


def test_changes_are_reported_by_vertex(path: Path) -> None:
    changed: list[str | None] = []
    with opened(path) as other:
        store = EvidenceStore(path, DAY, time.time, on_changed=changed.append)
        store.record([(EDGE, ONE)])
        assert changed == ["read"]
        other.record([(("write", "save"), ONE)])
        other.flush()
        store.flush()
        assert "write" in changed
        store.reset()
        assert changed[-1] is None
        store.close()


def test_a_full_disk_is_reported_once_and_the_observations_are_written_later(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(path) as store:
        store.flush()
        write = store._file.write
        monkeypatch.setattr(store._file, "write", fail)
        store.record([(EDGE, ONE)])
        for _ in range(3):
            with pytest.raises(sqlite3.OperationalError, match="full"):
                store.flush()
        assert len([record for record in caplog.records if "is full" in record.message]) == 1
        store.record([(EDGE, ONE)])
        monkeypatch.setattr(store._file, "write", write)
        store.flush()
    with opened(path) as store:
        store.flush()
        assert successes(store) == pytest.approx(2, rel=1e-3)


def test_observations_that_were_written_before_a_failed_read_are_not_written_twice(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(path) as store:
        store.flush()
        read = store._file.read
        monkeypatch.setattr(store._file, "read", fail)
        store.record([(EDGE, ONE)])
        with pytest.raises(sqlite3.OperationalError, match="full"):
            store.flush()
        monkeypatch.setattr(store._file, "read", read)
        store.flush()
        assert successes(store) == pytest.approx(1, rel=1e-3)


def fail(*_arguments: object) -> None:
    raise sqlite3.OperationalError("database or disk is full")


def test_an_abandoned_store_ends_its_thread(path: Path) -> None:
    store = EvidenceStore(path, DAY, time.time)
    store.flush()
    thread, reference = store._thread, weakref.ref(store)
    assert thread is not None
    del store
    while reference() is not None:  # the thread holds a reference during an exchange
        gc.collect()
        thread.join(0.01)
    thread.join(10)
    assert not thread.is_alive()


@pytest.mark.costly
async def test_the_event_loop_never_waits_for_the_file(path: Path) -> None:
    with opened(path) as store, opened(path) as other:
        other.record([((str(number), "search"), ONE) for number in range(20_000)])
        blocked = await asyncio.to_thread(sqlite3.connect, path, isolation_level=None, check_same_thread=False)
        longest, steps = 0.0, 0
        for step in range(150):
            if step == 50:
                await asyncio.to_thread(blocked.execute, "BEGIN IMMEDIATE")
            if step == 100:
                await asyncio.to_thread(blocked.execute, "COMMIT")
            store.record([(EDGE, ONE), ((str(step), "search"), ONE)])
            before = time.perf_counter()
            await asyncio.sleep(0.01)
            longest = max(longest, time.perf_counter() - before)
            steps += 1
        blocked.close()
        assert longest < 0.3  # 0.03 without other load on the machine
        await asyncio.to_thread(store.flush)
        assert successes(store) == pytest.approx(steps, rel=1e-2)
    assert successes(read_file(path)) == pytest.approx(steps, rel=1e-2)


WORKER = """
import sys, time
from pathlib import Path
from dispatch.toolkit.evidence import Evidence
from dispatch.toolkit.evidence import EvidenceStore

store = EvidenceStore(Path(sys.argv[1]), 30 * 86400.0, time.time)
count = int(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
for number in range(count):
    own = (f"own {sys.argv[3]}", str(number % 50))
    store.record([(("read", "search"), Evidence(success=1.0)), (own, Evidence(unused=1.0))])
    print(number + 1, time.time(), flush=True)
    time.sleep(0.005)
if sys.argv[4] == "close":
    store.close()
"""


def start_worker(path: Path, count: int, name: str, end: str) -> subprocess.Popen[str]:
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(path), str(count), name, end],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert worker.stdout.readline() == "ready\n"
    return worker


def begin(worker: subprocess.Popen[str]) -> None:
    worker.stdin.write("\n")
    worker.stdin.flush()


def read_file(path: Path) -> EvidenceStore:
    store = EvidenceStore(path, 30 * DAY, time.time)
    store.flush()
    store.close()
    return store


@pytest.mark.long
def test_processes_that_learn_at_the_same_time_lose_nothing(path: Path) -> None:
    count = by_profile(short=100, long=2_000)
    # The last one ends without close: its exit writes the rest.
    workers = [start_worker(path, count, str(number), "close" if number else "exit") for number in range(3)]
    for worker in workers:
        begin(worker)
    for worker in workers:
        worker.communicate(timeout=120)
        assert worker.returncode == 0
    store = read_file(path)
    assert successes(store) == pytest.approx(3 * count, rel=1e-4)
    assert len(store.read_all()) == 1 + 3 * 50


@pytest.mark.long
def test_a_killed_process_loses_at_most_a_second(path: Path) -> None:
    survivor = start_worker(path, by_profile(short=300, long=6_000), "survivor", "close")
    begin(survivor)
    written = 0.0
    for number in range(by_profile(short=1, long=10)):
        worker = start_worker(path, 100_000, str(number), "close")
        begin(worker)
        time.sleep(1.2 + 0.17 * number)
        os.kill(worker.pid, signal.SIGKILL)
        killed = time.time()
        output, _ = worker.communicate(timeout=30)
        lines = [line.split() for line in output.splitlines() if line.count(" ") == 1 and not line.endswith(" ")]
        older = [int(count) for count, at in lines if float(at) < killed - 1.0]
        written += older[-1]
    output, _ = survivor.communicate(timeout=120)
    store = read_file(path)
    total = successes(store) - len([line for line in output.splitlines() if line])
    assert total >= written * (1 - 1e-3)
    for number in range(by_profile(short=1, long=10)):
        assert store.get(f"own {number}", "0") is not None
