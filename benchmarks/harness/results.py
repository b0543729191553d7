"""Results of a run: raw figures of each round, their summary and the ratios, also as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.harness.environment import Setting
from benchmarks.harness.plan import Settings, Suite
from benchmarks.harness.statistics import Spread, spread

FIGURES = ("p50_ms", "p99_ms", "p999_ms", "calls_per_second", "cpu_us_per_call")


@dataclass(frozen=True)
class Measurement:
    """One contender at one number of calls in flight in one round.

    Attributes:
        round: from 1.
        position: which of its suite's contenders it was in this round, from 1.
        p50_ms: of the calls that were answered and began within the measurement; None if there was none.
        p99_ms: the same.
        p999_ms: the same.
        calls_per_second: answers within the measurement over its length.
        cpu_us_per_call: processor time of the client's whole process, all threads, per answer.
        seconds: the measurement's length.
        calls: calls made, those of the ramp included.
        answered: those that were answered (rightly: a wrong answer ends the run).
        lost: those that were not, in time.
        errors: the lost ones, by kind of error.
    """

    suite: str
    contender: str
    in_flight: int
    round: int
    position: int
    p50_ms: float | None
    p99_ms: float | None
    p999_ms: float | None
    calls_per_second: float
    cpu_us_per_call: float | None
    seconds: float
    calls: int
    answered: int
    lost: int
    errors: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Summary:
    """One contender at one number of calls in flight, over all rounds."""

    suite: str
    contender: str
    in_flight: int
    figures: dict[str, Spread | None]
    calls: int
    lost: int


@dataclass(frozen=True)
class Results:
    """A whole run."""

    setting: Setting
    settings: Settings
    suites: tuple[Suite, ...]
    measurements: tuple[Measurement, ...]

    def of(self, suite: str, contender: str, in_flight: int) -> list[Measurement]:
        """The rounds of one cell."""
        return [m for m in self.measurements if (m.suite, m.contender, m.in_flight) == (suite, contender, in_flight)]

    def figure(self, suite: str, contender: str, in_flight: int, name: str) -> dict[int, float | None]:
        """One figure of one cell, by round."""
        return {m.round: getattr(m, name) for m in self.of(suite, contender, in_flight)}

    def summary(self, suite: str, contender: str, in_flight: int) -> Summary:
        """One cell over all rounds."""
        cells = self.of(suite, contender, in_flight)
        return Summary(
            suite,
            contender,
            in_flight,
            {name: spread(getattr(m, name) for m in cells) for name in FIGURES},
            sum(m.calls for m in cells),
            sum(m.lost for m in cells),
        )

    def summaries(self) -> list[Summary]:
        """Every cell, in the order of the plan."""
        return [
            self.summary(suite.name, contender.name, level)
            for suite in self.suites
            for contender in suite.contenders
            for level in suite.levels
        ]

    def as_dict(self, ratios: Sequence[Any]) -> dict[str, Any]:
        """Return the results as plain values, with their ``ratios`` (dataclasses)."""
        return {
            "format": 1,
            **asdict(self.setting),
            "settings": asdict(self.settings),
            "suites": [asdict(suite) for suite in self.suites],
            "measurements": [asdict(m) for m in self.measurements],
            "summary": [asdict(s) for s in self.summaries()],
            "ratios": [asdict(r) for r in ratios],
        }
