"""Worker processes of the benchmark: the driver sends commands and reads answers, and stops each process at the end."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO, Any, NoReturn

ROOT = Path(__file__).resolve().parents[2]
READY_S = 60.0
"""Seconds until a process is ready, at most: TrustGraph's imports alone need several on a busy machine."""
END_S = 20.0
STACKS_S = 1.0
"""Seconds in which a process that did not end writes the stacks of its threads."""

BOOTSTRAP = """\
import runpy, sys
product, here, module = sys.argv[1:4]
sys.path.insert(0, product)
import dispatch
if not dispatch.__file__.startswith(product):
    raise SystemExit(f"dispatch was imported from {dispatch.__file__}, not from {product}")
sys.path[0] = here
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""
"""Imports ``dispatch`` from one folder and everything else from another: both hold packages of the same names."""


class BenchmarkError(RuntimeError):
    """The run failed: a process ended early, did not respond, or gave a wrong answer. The text has its last lines."""


class Child:
    """A process with a channel; a context manager. It does nothing until :meth:`begin`.

    It lives in a session of its own, so that a Ctrl-C reaches the driver only; it ends with its stdin, so with this
    process in any case.

    Args:
        module: name of the process in errors.
        command: the command line.
        files: descriptors that it inherits.
        may_fail: a process that does not end well is reported and killed; its figures count.
    """

    def __init__(
        self, module: str, command: Sequence[str], files: Sequence[int] = (), *, may_fail: bool = False
    ) -> None:
        self.module = module
        self._may_fail = may_fail
        self._is_killed = False
        self._answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._last_words: deque[str] = deque(maxlen=200)
        self._process = subprocess.Popen(
            list(command),
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
            pass_fds=files,
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._threads = [
            threading.Thread(target=self._read_answers, args=(self._process.stdout,), daemon=True),
            threading.Thread(target=self._last_words.extend, args=(self._process.stderr,), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        return self._process.poll()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    def stop_gracefully(self) -> None:
        """Close its stdin: the process stops as it does after its last command."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def begin(self, spec: dict[str, Any]) -> None:
        """Send the spec, and wait until the process is ready.

        Raises:
            BenchmarkError: it was not ready in time.
        """
        self.ask(spec, READY_S)

    def _read_answers(self, output: IO[str]) -> None:
        for line in output:
            try:
                self._answers.put(json.loads(line))
            except ValueError:  # printed before the process made its stdout the channel
                self._last_words.append(line)
        self._answers.put(None)

    def ask(self, command: dict[str, Any], timeout: float) -> dict[str, Any]:
        """Send a command and wait up to ``timeout`` seconds for its answer.

        Raises:
            BenchmarkError: there is none.
        """
        self.send(command)
        return self.wait_for_answer(timeout)

    def send(self, command: dict[str, Any]) -> None:
        """Send a command; :meth:`wait_for_answer` returns its answer."""
        assert self._process.stdin is not None
        with contextlib.suppress(
            BrokenPipeError, ValueError
        ):  # the process has ended; the missing answer reports it below
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()

    def wait_for_answer(self, timeout: float) -> dict[str, Any]:
        """Wait up to ``timeout`` seconds for the answer to the command that was sent.

        Raises:
            BenchmarkError: there is none.
        """
        try:
            answer = self._answers.get(timeout=timeout)
        except queue.Empty:
            raise BenchmarkError(f"{self.module} gave no answer within {timeout:g} s\n{self._end()}") from None
        if answer is None:
            self._answers.put(None)  # for the next command
            raise BenchmarkError(f"{self.module} ended early\n{self._end()}")
        return answer

    def _end(self) -> str:
        self.kill()
        return "".join(self._last_words)

    def close(self) -> None:
        """Close stdin and wait until the process ends.

        Raises:
            BenchmarkError: it did not, or not well.
        """
        self.stop_gracefully()
        try:
            status = self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGUSR1)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STACKS_S)
            raise BenchmarkError(f"{self.module} did not end within {END_S:g} s\n{self._end()}") from None
        self._join()
        if status != 0:
            raise BenchmarkError(f"{self.module} ended with status {status}\n{''.join(self._last_words)}")

    def kill(self) -> None:
        """Kill the process; no effect if it has ended."""
        self._is_killed = True
        self._process.kill()
        self._process.wait()
        self._join()

    def _join(self) -> None:
        for thread in self._threads:
            thread.join(END_S)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):  # unwritten commands
                    stream.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None and not self._is_killed:
                self.close()
        except BenchmarkError as error:
            if not self._may_fail:
                raise
            say(str(error))
        finally:
            self.kill()


def start(
    module: str,
    stack: contextlib.ExitStack,
    product: Path | None = None,
    *,
    package: str = "benchmarks.workers",
    files: Sequence[int] = (),
    may_fail: bool = False,
) -> Child:
    """Start a :class:`Child` that ``stack`` stops. Signals are deferred until the stack has the process.

    Args:
        module: one of ``package``.
        stack: stops the process.
        product: the folder with the package ``dispatch`` that it imports; None: this checkout.
        files, may_fail: see :class:`Child`.
    """
    with held_back(signal.SIGINT, signal.SIGTERM):
        name = f"{package}.{module}"
        command = [sys.executable, "-m", name] if product is None else product_command(product, name)
        return stack.enter_context(Child(module, command, files, may_fail=may_fail))


def product_command(product: Path, module: str) -> list[str]:
    """Return the command line that runs ``module`` of this checkout with the package ``dispatch`` of ``product``."""
    return [sys.executable, "-P", "-c", BOOTSTRAP, str(product), str(ROOT), module]


def say(line: str) -> None:
    """Report progress."""
    print(line, file=sys.stderr, flush=True)


def terminated(number: int, _frame: FrameType | None) -> NoReturn:
    """Handler of a signal: leave by an exception, so that what was started is stopped."""
    raise SystemExit(128 + number)


@contextlib.contextmanager
def held_back(*numbers: signal.Signals) -> Iterator[None]:
    """Signals that come within the block are handled after it."""
    if threading.current_thread() is not threading.main_thread():
        yield  # no handler runs here
        return
    came: list[int] = []
    before = {number: signal.signal(number, lambda number, _frame: came.append(number)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for number in came:
        signal.raise_signal(number)
