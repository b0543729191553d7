"""The cost of code as the number of its bytecode instructions, which does not depend on the machine or its load."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any


class Instructions:
    """Counts bytecode instructions while it is entered."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Instructions:
        self._former = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_exc: object) -> None:
        sys.settrace(self._former)

    def _trace(self, frame: FrameType, event: str, _argument: Any) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        self.count += event == "opcode"
        return self._trace
