"""The account of a story: which calls executed, what their callers were answered, and whether the two agree."""

from __future__ import annotations

from collections import Counter

from tests.simulation.call import Call

ROUNDING_S = 0.002
"""Deadlines travel in whole milliseconds, and the instance adds them to a clock that was read in whole milliseconds."""


class Ledger:
    """Raises AssertionError as soon as an event contradicts a guarantee of the protocol (protocol.md, section 4)."""

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts
        self.calls: dict[str, Call] = {}
        self.outcomes: dict[str, str] = {}
        self._delivered: Counter[tuple[str, int]] = Counter()
        self._executed: Counter[str] = Counter()
        self._did_not_run: set[tuple[str, int]] = set()
        self._deadlines: dict[tuple[str, int], float] = {}

    def record_sending(self, token: str, attempt: int, run_until: float) -> None:
        self._deadlines[token, attempt] = run_until

    def record_delivery(
        self, payload: bytes, target: str, headers: dict[str, str] | None, now: float, delay: float
    ) -> Call:
        """Check a request that an instance delivers to its tool, and return its call.

        Args:
            delay: of the packet that completed the request. The instance cannot know it, and it extends the deadline.
        """
        attempt = int(payload[: payload.index(b":")].decode().split(".")[1])
        call = self.calls[target]
        key = (target, attempt)
        assert payload == call.request(attempt), f"{key}: the request is not what was sent"
        assert headers == call.headers, f"{key}: headers {headers}, not {call.headers}"
        self._delivered[key] += 1
        assert self._delivered[key] == 1, f"{key} was delivered twice"
        assert key not in self._did_not_run, f"{key} was delivered after its caller was informed that it did not run"
        assert now <= self._deadlines[key] + delay + ROUNDING_S, (
            f"{key} runs {now - self._deadlines[key]} s after its deadline"
        )
        return call

    def record_execution(self, token: str) -> None:
        self._executed[token] += 1
        assert self._executed[token] == 1, f"{token} executed twice"

    def record_did_not_run(self, token: str, attempt: int) -> None:
        assert not self._delivered[token, attempt], f"({token}, {attempt}) ran, and its caller is told that it did not"
        self._did_not_run.add((token, attempt))

    def record_outcome(self, token: str, outcome: str) -> None:
        assert token not in self.outcomes, f"{token} ended as {outcome} after it had ended as {self.outcomes[token]}"
        self.outcomes[token] = outcome
        self._counts[outcome] += 1

    def has_not_run(self, token: str) -> bool:
        """Whether the caller was informed that no attempt of the call ran."""
        return any(each == token for each, _ in self._did_not_run) and not self._executed[token]

    @property
    def pending(self) -> list[str]:
        return [token for token in self.calls if token not in self.outcomes]
