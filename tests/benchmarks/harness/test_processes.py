"""The driver's processes: answers, early ends and cleanup."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.harness import processes
from benchmarks.harness.processes import BenchmarkError, Child, product_command, start
from dispatch.devtools.localbroker.processes import process_identity

ECHO = """
import json, os, sys
print(json.dumps({"pid": os.getpid()}), flush=True)
for line in sys.stdin:
    command = json.loads(line)
    if command.get("do") == "end":
        print("its last words", file=sys.stderr)
        sys.exit(3)
    if command.get("do") != "nothing":
        print(json.dumps({"got": command}), flush=True)
sys.exit(int(os.environ.get("STATUS", "0")))
"""


def put(program: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Add a module ``echo`` to the workers."""
    package = folder / "benchmarks" / "workers"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "echo.py").write_text(program)
    monkeypatch.setattr(processes, "ROOT", folder)


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Child, int]]:
    """A child that echoes, and its process id."""
    put(ECHO, tmp_path, monkeypatch)
    child = Child("echo")
    try:
        yield child, child.ask({"do": "nothing"}, 30)["pid"]
    finally:
        child.kill()


def gone(pid: int) -> bool:
    return process_identity(pid) is None


def test_it_is_asked_and_answers_and_ends_when_it_is_let_go(started: tuple[Child, int]) -> None:
    child, pid = started
    with child:
        assert child.ask({"n": 1}, 30) == {"got": {"n": 1}}
        child.begin({"n": 2})
        assert not gone(pid)
    assert gone(pid)


def test_an_early_end_is_told_with_its_last_words(started: tuple[Child, int]) -> None:
    child, pid = started
    with pytest.raises(BenchmarkError, match="echo ended early\nits last words"):
        child.ask({"do": "end"}, 30)
    assert gone(pid)
    with pytest.raises(BenchmarkError, match="ended early"):
        child.ask({"n": 1}, 30)


def test_one_that_stands_still_is_ended(started: tuple[Child, int]) -> None:
    child, pid = started
    with pytest.raises(BenchmarkError, match=r"echo gave no answer within 0\.01 s"):
        child.ask({"do": "nothing"}, 0.01)
    assert gone(pid)


def test_one_that_ends_badly_fails_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(ECHO, tmp_path, monkeypatch)
    monkeypatch.setenv("STATUS", "9")
    with pytest.raises(BenchmarkError, match="ended with status 9"), Child("echo") as child:
        child.ask({"do": "nothing"}, 30)


def test_whatever_happens_in_the_block_it_is_gone_after_it(started: tuple[Child, int]) -> None:
    child, pid = started
    with pytest.raises(KeyboardInterrupt), child:
        raise KeyboardInterrupt
    assert gone(pid)


def test_a_module_that_is_not_there_is_an_early_end() -> None:
    child = Child("no_such_module")
    with pytest.raises(BenchmarkError, match=r"ended early\n.*No module named"):
        child.begin({})
    child.kill()  # nothing more happens to one that has ended


def test_what_is_no_answer_is_kept_for_the_last_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put("print('a library that chatters')", tmp_path, monkeypatch)
    child = Child("echo")
    with pytest.raises(BenchmarkError, match="a library that chatters"):
        child.begin({})


def test_a_ctrl_c_in_the_middle_of_a_start_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(ECHO, tmp_path, monkeypatch)
    born: list[Child] = []

    class Interrupted(Child):
        def __init__(self, module: str, command: Sequence[str] | None = None) -> None:
            super().__init__(module, command)
            born.append(self)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(processes, "Child", Interrupted)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), ExitStack() as stack:
        start("echo", stack)
    assert signal.getsignal(signal.SIGINT) is before
    assert len(born) == 1
    assert gone(born[0].pid)


def test_without_a_ctrl_c_it_ends_with_the_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(ECHO, tmp_path, monkeypatch)
    with ExitStack() as stack:
        child = start("echo", stack)
        assert not gone(child.pid)
    assert gone(child.pid)


def test_a_worker_has_dispatch_from_one_checkout_and_everything_else_from_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, package in (("old", "dispatch"), ("old", "benchmarks"), ("new", "dispatch"), ("new", "benchmarks")):
        (tmp_path / folder / package).mkdir(parents=True)
        (tmp_path / folder / package / "__init__.py").write_text(f"WHERE = {folder!r}\n")
    for folder in ("old", "new"):
        (tmp_path / folder / "dispatch" / "part.py").write_text(f"WHERE = {folder!r}\n")
        (tmp_path / folder / "benchmarks" / "role.py").write_text(
            f"import benchmarks, dispatch.part\nprint({folder!r}, benchmarks.WHERE, dispatch.WHERE, dispatch.part.WHERE)\n"
        )
    monkeypatch.setattr(processes, "ROOT", tmp_path / "new")
    command = product_command(tmp_path / "old", "benchmarks.role")
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={"PYTHONPATH": str(tmp_path / "new")}
    )
    assert done.stdout.split() == ["new", "new", "old", "old"]
