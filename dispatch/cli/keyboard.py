"""Keys of a terminal as they are pressed; the terminal is restored afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import Iterator
from typing import Final

from dispatch.cli.base import is_terminal

_KEY = re.compile(r"\x1b\[[0-9;]*[A-Za-z~]|\x1bO.|.", re.DOTALL)
_NAMES: Final = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1b[C": "right",
    "\x1b[D": "left",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\x1b[H": "home",
    "\x1b[F": "end",
    "\x1b": "escape",
    "\r": "enter",
    "\n": "enter",
    "\t": "tab",
    "\x7f": "backspace",
    "\b": "backspace",
}


def read_keys(text: str) -> list[str]:
    """Return the keys in what a terminal has sent: characters, and names such as ``up``; unknown ones are omitted."""
    keys = (match.group().replace("\x1bO", "\x1b[") for match in _KEY.finditer(text))
    return [_NAMES.get(key, key) for key in keys if key in _NAMES or key.isprintable()]


@contextlib.contextmanager
def pressed_keys() -> Iterator[asyncio.Queue[str]]:
    """Yield a queue of the keys pressed inside the context; empty forever if stdin is no terminal. SIGTERM and SIGHUP
    end the process after the context has been left, so that the terminal is restored then, too."""
    keys: asyncio.Queue[str] = asyncio.Queue()
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    received: list[signal.Signals] = []

    def end(number: signal.Signals) -> None:
        received.append(number)
        task.cancel()

    with contextlib.ExitStack() as stack:
        stack.callback(lambda: signal.raise_signal(received[0]) if received else None)
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, end, number)
            stack.callback(loop.remove_signal_handler, number)
        if is_terminal(sys.stdin):
            import termios
            import tty

            terminal = sys.stdin.fileno()

            def read() -> None:
                for key in read_keys(os.read(terminal, 4096).decode(errors="replace")):
                    keys.put_nowait(key)

            stack.callback(termios.tcsetattr, terminal, termios.TCSADRAIN, termios.tcgetattr(terminal))
            tty.setcbreak(terminal)
            loop.add_reader(terminal, read)
            stack.callback(loop.remove_reader, terminal)
        yield keys
