"""Results of a run: raw figures of each round, their summary and the ratios, also as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.harness.environment import Setting
from benchmarks.harness.plan import Contender, Settings, Suite
from benchmarks.harness.statistics import Spread, spread

FORMAT = 2
"""Of the JSON; it changes with the fields."""
FIGURES = (
    *("p50_ms", "p99_ms", "p999_ms", "calls_per_second"),
    "retransmitted",
    *("cpu_us_per_call", "service_cpu_us_per_call", "broker_cpu_us_per_call"),
)


@dataclass(frozen=True)
class Measurement:
    """One contender at one level in one round.

    Attributes:
        level: calls in flight, or what the mode of the suite says.
        round: from 1.
        position: which of its suite's contenders it was in this round, from 1.
        p50_ms: of the calls that were answered and began within the measurement; None if there was none. Of several calling
            processes the slowest.
        p99_ms: the same.
        p999_ms: the same.
        calls_per_second: answers within the measurement over its length; the sum of several calling processes.
        cpu_us_per_call: processor time of the client's whole process, all threads, per answer; None if there are other calls
            beside the measured ones.
        service_cpu_us_per_call: the same of the serving processes; None where it is not known.
        broker_cpu_us_per_call: the same of the broker; None where it is not known, or for a broker of the environment.
        other_processors: processors that were busy with other programs meanwhile; None where it is not known.
        seconds: the measurement's length.
        calls: calls made, those of the ramp included.
        answered: those that were answered (rightly: a wrong answer ends the run).
        lost: those that were not, in time.
        repeated: executions of calls that had been executed before; None: not counted.
        retransmitted: retransmissions and probes of the service's sessions per packet that they sent; None: no
            sessions.
        errors: the lost ones, by kind of error.
    """

    suite: str
    contender: str
    level: int
    round: int
    position: int
    p50_ms: float | None
    p99_ms: float | None
    p999_ms: float | None
    calls_per_second: float
    cpu_us_per_call: float | None
    service_cpu_us_per_call: float | None
    broker_cpu_us_per_call: float | None
    other_processors: float | None
    seconds: float
    calls: int
    answered: int
    lost: int
    repeated: int | None = None
    retransmitted: float | None = None
    errors: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Summary:
    """One contender at one level, over all rounds."""

    suite: str
    contender: str
    level: int
    figures: dict[str, Spread | None]
    calls: int
    lost: int
    repeated: int | None


@dataclass(frozen=True)
class Results:
    """A whole run."""

    setting: Setting
    settings: Settings
    suites: tuple[Suite, ...]
    measurements: tuple[Measurement, ...]

    @property
    def other_processors(self) -> Spread | None:
        """Processors that were busy with other programs, over all measurements: what disturbed the run."""
        return spread(m.other_processors for m in self.measurements)

    def of(self, suite: str, contender: str, level: int) -> list[Measurement]:
        """The rounds of one cell."""
        return [m for m in self.measurements if (m.suite, m.contender, m.level) == (suite, contender, level)]

    def figure(self, suite: str, contender: str, level: int, name: str) -> dict[int, float | None]:
        """One figure of one cell, by round."""
        return {m.round: getattr(m, name) for m in self.of(suite, contender, level)}

    def summary(self, suite: str, contender: str, level: int) -> Summary:
        """One cell over all rounds."""
        cells = self.of(suite, contender, level)
        repeated = [m.repeated for m in cells if m.repeated is not None]
        return Summary(
            suite,
            contender,
            level,
            {name: spread(getattr(m, name) for m in cells) for name in FIGURES},
            sum(m.calls for m in cells),
            sum(m.lost for m in cells),
            sum(repeated) if repeated else None,
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
            "format": FORMAT,
            **asdict(self.setting),
            "settings": asdict(self.settings),
            "suites": [asdict(suite) for suite in self.suites],
            "measurements": [asdict(m) for m in self.measurements],
            "summary": [asdict(s) for s in self.summaries()],
            "ratios": [asdict(r) for r in ratios],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Results:
        """Return the results that :meth:`as_dict` has written.

        Raises:
            ValueError: they have another format.
        """
        if values.get("format") != FORMAT:
            raise ValueError(f"results of format {values.get('format')!r} are not readable; run the benchmarks again")
        suites = (
            Suite(**{**suite, **_tuples(suite), "contenders": tuple(Contender(**c) for c in suite["contenders"])})
            for suite in values["suites"]
        )
        setting = Setting(**{name: values[name] for name in ("date", "machine", "versions", "broker")})
        measurements = tuple(Measurement(**each) for each in values["measurements"])
        return cls(setting, Settings(**values["settings"]), tuple(suites), measurements)


def _tuples(values: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """Return the lists of ``values``, which JSON makes of tuples, as tuples."""
    return {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
