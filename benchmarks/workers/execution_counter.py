"""Count of calls that a service executes more than once."""

from __future__ import annotations

BLOCK = 1_000_000


class ExecutionCounter:
    """Counts executions of numbered calls. Numbers are small whole numbers; one byte each is retained."""

    def __init__(self) -> None:
        self.repeated = 0
        """Executions of calls that had been executed before."""
        self._is_executed = bytearray(BLOCK)

    def record(self, number: int) -> None:
        """Count an execution of call ``number``."""
        while number >= len(self._is_executed):
            self._is_executed.extend(bytes(BLOCK))
        self.repeated += self._is_executed[number]
        self._is_executed[number] = 1
