"""``dispatch mcp`` as a process whose stdin stays open, for its ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from types import TracebackType
from typing import Any, Self

from tests.helpers.cli_processes import REPO, WAIT_S, environment

SIGNALS = {"interrupt": signal.SIGINT, "terminate": signal.SIGTERM}


class StdioProgram:
    """``dispatch ARGUMENTS`` on pipes."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dispatch", *arguments],
            cwd=REPO,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.communicate()

    def request(self, method: str) -> Any:
        """Send a request and return the first line of the answer."""
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method}).encode() + b"\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def stop(self, name: str) -> int:
        """Send a signal and return the exit code. The process writes nothing more, and no traceback."""
        self.process.send_signal(SIGNALS[name])
        code = self.process.wait(WAIT_S)
        out, err = self.process.communicate()
        assert out == b""
        assert b"Traceback" not in err, err.decode()
        return code
