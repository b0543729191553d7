"""Policy: what a call may take, and its parts. Frozen values; each default states its reason."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple, Protocol

import msgspec

from dispatch._internal import (
    NamedFields,
    check_instance,
    describe_type,
    excerpt,
    explain_keywords,
    find_near_names,
    scalar_value,
)
from dispatch.documents import (
    WRONG,
    DocumentError,
    Mistake,
    Problem,
    Report,
    Rule,
    describe_kind,
    is_number,
    is_whole,
    list_mistakes,
    load_document,
    optional,
    refuse,
    require,
    rules_of,
)

# The error for invalid policies, and the rules of their values.


class PolicyError(ValueError):
    """An invalid policy: the ``key`` of the first mistake, its ``problem`` and its ``fix``.

    Attributes:
        mistakes: all of them, each with its key, problem and fix.
        file: path of the policy; empty: it is no file.
    """

    def __init__(self, key: str, problem: str, fix: str, others: Iterable[Mistake] = (), file: str = "") -> None:
        self.key = key
        self.problem = problem
        self.fix = fix
        self.mistakes: tuple[Mistake, ...] = ((key, problem, fix), *others)
        self.file = file
        super().__init__(key, problem, fix, self.mistakes[1:], file)

    def __str__(self) -> str:
        if self.file:
            return list_mistakes(f"The policy in '{self.file}' is invalid", self.problems)
        return "\n".join(f"policy key '{key}': {problem}; {fix}" for key, problem, fix in self.mistakes)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The mistakes as problems of the file."""
        return tuple(Problem(self.file, *each) for each in self.mistakes)


def _raise_all(report: Report) -> None:
    """Raise the mistakes of a policy, those of parts first."""
    if report.has_errors:
        errors = [(each.key, each.problem, each.fix) for each in report.problems if each.severity == "error"]
        first, *others = sorted(errors, key=lambda mistake: "." not in mistake[0])
        raise PolicyError(*first, others) from None


MAX_SECONDS = 7 * 24 * 3600.0
"""Largest time: a week. A larger value is nearly always a mistake of units (milliseconds)."""
LONG_SECONDS = 3600.0
"""A longer time than an hour is valid, and reported: an agent seldom waits so long, and 30000 may be milliseconds."""


def _number(fix: str, test: Callable[[Any], bool], problem: str, range_fix: str) -> Rule:
    return require((is_number, "{!r} is not a number", fix), (test, problem, range_fix))  # a test is false for NaN


def _seconds(test: Callable[[Any], bool], least: str) -> Rule:
    fix = f"give seconds {least} 0 and at most 604800 (a week)"
    rule = _number("give seconds, for instance 10 or 0.5", test, "{!r} is out of range", fix)

    def read(value: Any, report: Report, path: str) -> Any:
        read = rule(value, report, path)
        if read is not WRONG and read > LONG_SECONDS:
            problem = f"{value:g} s are {value / 3600:.3g} hours"
            report.add_warning(path, problem, f"times are in seconds: write {value / 1000:g} if milliseconds are meant")
        return read

    return read


def _whole(least: int, most: int, fix: str) -> Rule:
    problem = f"{{!r}} is not a whole number from {least} to {most}"
    return require((lambda value: is_whole(value) and least <= value <= most, problem, fix))


def _count(most: int) -> Rule:
    return _whole(1, most, f"give a whole number ≥ 1 and ≤ {most}")


def _also(rule: Rule, test: Callable[[Any], bool], problem: str, fix: str) -> Rule:
    """Return ``rule`` with another test."""
    then = require((test, problem, fix))

    def read(value: Any, report: Report, path: str) -> Any:
        read = rule(value, report, path)
        return WRONG if read is WRONG else then(read, report, path)

    return read


def _texts(test: Callable[[tuple[Any, ...]], bool], problem: str, fix: str) -> Rule:
    """Return a rule for a list or tuple of texts."""

    def is_valid(value: object) -> bool:
        return isinstance(value, tuple) and all(isinstance(each, str) and each for each in value) and test(value)

    rule = require((is_valid, problem, fix))
    return lambda value, report, path: rule(tuple(value) if isinstance(value, list) else value, report, path)


_SECONDS: Final = _seconds(lambda value: 0 < value <= MAX_SECONDS, "above")
_WAIT: Final = _seconds(lambda value: 0 <= value <= MAX_SECONDS, "from")
_BYTES: Final = require(
    (lambda value: is_whole(value) and value >= 1, "{!r} is not a whole number above 0", "give a whole number ≥ 1")
)
Seconds = Annotated[float, _SECONDS]
SecondsOrNone = Annotated[float | None, optional(_SECONDS)]
WaitSeconds = Annotated[float, _WAIT]
Size = Annotated[int, _BYTES]
_FLAG: Final = require((lambda value: isinstance(value, bool), "{!r} is not true or false", "give true or false"))
Flag = Annotated[bool, _FLAG]


_NUMBERS: Final = (float, int)


def check_seconds(value: object, key: str = "timeout") -> float:
    """Return ``value`` as a time in seconds, above 0 and at most a week.

    Raises:
        PolicyError: it is no such time.
    """
    if type(value) not in _NUMBERS or not 0 < value <= MAX_SECONDS:  # type: ignore[operator] # perf: in calls
        found = Report("")
        value = _SECONDS(value, found, key)
        _raise_all(found)
    return float(value)  # type: ignore[arg-type] # a number


# A policy and its parts are structs whose fields have rules.


class Settings(msgspec.Struct, metaclass=NamedFields, frozen=True, rename="kebab"):
    """Base of a policy and of its parts: the value of each field is as the rule in its annotation has it."""

    PART: ClassVar[str] = ""
    """Prefix of its keys in errors."""

    def __post_init__(self) -> None:
        found = Report("")
        for field, key, rule, default in _checks_of(type(self)):
            value = getattr(self, field)
            if value is not default:  # perf: a policy sets few of its keys
                read = rule(value, found, key)
                if read is not value:  # Policy(rate_limit="100/s", retry=2): as a descriptor has it
                    msgspec.structs.force_setattr(self, field, read)
        if not found.has_errors:
            self._find_conflicts(found)
        _raise_all(found)

    def _find_conflicts(self, report: Report) -> None:
        """Add the mistakes of values that are invalid together."""


@functools.cache
def _checks_of(kind: type[Settings]) -> tuple[tuple[str, str, Rule, Any], ...]:
    """Return the name, path, rule and default of each field."""
    part = f"{kind.PART}." if kind.PART else ""
    defaults = {field.name: field.default for field in msgspec.structs.fields(kind)}
    return tuple((field, part + key, rule, defaults[field]) for key, (field, rule) in rules_of(kind).items())


def _hint(value: object, known: Iterable[str]) -> str:
    near = find_near_names(str(value), known, 1)
    return f"did you mean '{near[0]}'? " if near else ""


def _merge_keys(base: Settings, raw: Mapping[Any, Any], report: Report, path: str) -> Any:
    """Return ``base`` with the values of ``raw``, whose keys are spelt as in a descriptor; :data:`WRONG` after a mistake."""
    fields = rules_of(type(base))
    changes: dict[str, Any] = {}
    for key, value in raw.items():
        where = f"{path}.{key}" if path else str(key)
        if key not in fields:
            report.add_error(where, "unknown key", f"{_hint(key, fields)}known keys: {', '.join(fields)}")
            changes[""] = WRONG
            continue
        field, rule = fields[key]
        over = (getattr(base, field),) if isinstance(rule, _PartRule) else ()
        changes[field] = rule(value, report, where, *over)
    if WRONG in changes.values() or not changes:
        return WRONG if changes else base
    try:
        return msgspec.structs.replace(base, **changes)
    except PolicyError as error:  # values that are invalid together
        report.add_error(path + error.key.removeprefix(base.PART), error.problem, error.fix)
        return WRONG


class _PartRule(msgspec.Struct):
    """The rule of a part of a policy: an object, merged over the part in force, or a bare value in its place.

    Attributes:
        default: merged over, where no part is in force.
        problem: of a value that is neither; ``{}`` is the value, ``{1}`` its type.
        fix: of it.
        bare: types of the bare value.
        key: that the bare value stands for.
        off: the meaning of null.
    """

    default: Any
    problem: str
    fix: str
    bare: tuple[type, ...] = ()
    key: str = ""
    off: Settings | None = None

    def __call__(self, raw: Any, report: Report, path: str, base: Any = None) -> Any:
        if raw is None or isinstance(raw, type(self.default)):
            return self.off if raw is None else raw
        if isinstance(raw, self.bare) and not isinstance(raw, bool):
            raw = {self.key: raw}
        if not isinstance(raw, Mapping):
            return refuse(report, path, self.problem.format(raw, type(raw).__name__), self.fix)
        return _merge_keys(self.default if base is None else base, raw, report, path)


# Load-balancing settings: which instance of a service receives the next request.
#
# In a descriptor: ``"balancing": "least-request"``, or ``{"strategy": "least-request", "choice-count": 8}``.


STRATEGIES: Final = ("round-robin", "weighted", "least-request", "peak-ewma")
"""The names that ``Balancing.strategy`` takes."""
MAX_CHOICES = 256
"""Instances compared for one request: as many as a dispatcher knows of one service."""


_STRATEGY: Final = require(
    (
        STRATEGIES.__contains__,
        "{!r} is unknown",
        lambda value: f"{_hint(value, STRATEGIES)}known: {', '.join(STRATEGIES)}",
    )
)


class Balancing(Settings, frozen=True):
    """How the instance for a request is chosen. In a descriptor a text alone is the strategy.

    Attributes:
        strategy: ``round-robin``: each instance in turn, whatever its weight, except one that has far more calls in flight
            than the next one. ``weighted``: in turn, as often as its weight says, evenly mixed. ``least-request``: of
            ``choice_count`` instances drawn at random, the one with the fewest calls of this dispatcher for its weight.
            ``peak-ewma``: of two drawn at random, the one that will probably answer sooner; the best where instances differ
            in speed. Default round-robin: it needs no knowledge of the instances, and is what people expect.
        choice_count: With ``least-request``, the number of instances that are compared, from 2 to 256; as many as there are
            instances compares all. Default 2 (Envoy): the cost does not grow with the instances, and the 99th percentile is
            within a few per cent of comparing all.
    """

    PART = "balancing"
    strategy: Annotated[str, _STRATEGY] = "round-robin"
    choice_count: Annotated[int, _whole(2, MAX_CHOICES, "give 2, or the number of instances to compare all")] = 2


_BALANCING: Final = _PartRule(
    Balancing(), "{1} is not an object", 'write "peak-ewma", or null for round-robin', (str,), "strategy", Balancing()
)


# Bulkhead settings: calls of a tool in flight, and how long a call may wait for a permit.
#
# In a descriptor: ``"bulkhead": {"max-concurrent-calls": 16, "max-wait": 0.5}``, or the number of calls alone,
# ``"bulkhead": 16``; null: off.


MAX_CONCURRENT_CALLS = 10_000
"""Calls of one tool in flight. More than this was never seen to help: a larger number is a slip, or limits nothing."""
MAX_PRIORITIES = 8


_PRIORITIES: Final = _texts(
    lambda names: len(set(names)) == len(names) and 1 <= len(names) <= MAX_PRIORITIES,
    f"{{!r}} is not a list of 1 to {MAX_PRIORITIES} different names",
    'write ["interactive", "batch"], the most urgent first',
)


SCOPES: Final = ("process", "fleet")
_SCOPE: Final = require(
    (
        SCOPES.__contains__,
        "{!r:.80} is unknown",
        'give "process", or "fleet" for all dispatchers of connect(fleet="NAME")',
    )
)
Scope = Annotated[Literal["process", "fleet"], _SCOPE]


class Bulkhead(Settings, frozen=True):
    """Limit of a tool's calls in flight, and of the time that a call waits for a permit.

    A bare number means ``max_concurrent_calls``: ``"bulkhead": 16``. The queue is bounded by waiting time, not by a small
    count; its length (10,000) and its overload rule (CoDel, on a standing queue) are constants of
    :mod:`dispatch.resilience.bulkhead`. Waiting calls of different users are served in turn.

    Attributes:
        max_concurrent_calls: Calls of the tool in flight. Default 64: as many messages as one connection publishes without
            loss at the broker (the publish window); by Little's law 640 calls a second of 0.1 s each.
        max_wait: Seconds that a call waits for a permit, never beyond its deadline; 0: a call that gets none at once
            is rejected. None: as long as the call can still end by its deadline, at the durations seen. Default None: a
            burst on a tool that takes seconds can be answered, like one on a fast tool.
        priorities: Names of priority classes, the most urgent first; a call that names none has the first. Default
            interactive before batch: a person waits for an interactive call.
        scope: ``process``: each dispatcher has the limit; ``fleet``: all dispatchers of one ``connect(fleet="NAME")``
            together have it. Default process: it needs no other dispatcher.
    """

    PART = "bulkhead"
    max_concurrent_calls: Annotated[
        int, _whole(1, MAX_CONCURRENT_CALLS, "give a whole number ≥ 1, for instance 64")
    ] = 64
    max_wait: Annotated[float | None, optional(_WAIT)] = None
    priorities: Annotated[tuple[str, ...], _PRIORITIES] = ("interactive", "batch")
    scope: Scope = "process"


_BULKHEAD: Final = _PartRule(
    Bulkhead(),
    "{!r} is neither a number nor an object",
    'write 16, {"max-concurrent-calls": 16, "max-wait": 0.5}, or null for off',
    (int, float),
    "max-concurrent-calls",
)


# Outlier detection settings: when an instance is ejected, for how long, and how it returns.
#
# In a descriptor: ``"outlier-detection": {"consecutive-failures": 3, "base-ejection-time": 5}``; null: off.


MAX_CONSECUTIVE_FAILURES = 100_000
MAX_EJECTION_S = 300.0
"""Seconds of the longest ejection, and of the longest pause that an instance may ask for (Envoy's ``max_ejection_time``)."""


def _ratio(test: Callable[[Any], bool], fix: str) -> Rule:
    return _number("give a number, for instance 0.5", test, "{!r} is out of range", fix)


class OutlierDetection(Settings, frozen=True):
    """Passive health checks: when an instance is ejected, for how long, and how it returns.

    Timeouts and transport errors are failures, unless they originate locally (:class:`dispatch.Origin`). A throttled call is
    none: the instance receives less work for as long as it asked. Cancelled calls, and calls that another guard rejected,
    are not counted. An attempt that was cancelled because its hedge, begun later, was answered first counts as a consecutive
    failure only. An instance is also ejected when its success rate is far below the others', or when it takes three times as
    long as they do; the constants of these rules are in :class:`dispatch.resilience.instances.EjectionRules`.

    Attributes:
        consecutive_failures: Consecutive failures that eject an instance; None: only its success rate or its durations do.
            Default 5 (Envoy, Finagle): at one failure in three, five in a row have a chance of one in 243; a dead instance
            is found with as many calls.
        base_ejection_time: Seconds of the first ejection; the second takes twice as long, the third three times; at most
            300 s (Envoy). Default 30 (Envoy, gRPC).
        max_ejection_ratio: Largest share of instances that may be ejected at once, above 0 and at most 1 (Envoy's
            ``max_ejection_percent``); one instance of three or more always may. Default 0.5: more rarely fail independently,
            and the rest could not carry the load.
        panic_threshold: When a smaller share of the instances than this is not ejected, or all of these fail, all instances
            are used (Envoy's panic mode); 0: only when all fail. Default 0.5 (Envoy): some failures are better than all
            calls at the last healthy instance.
        slow_start_window: Seconds after which an instance that is new or returns receives its full share, beginning with a
            tenth; None: at once. Default 30: caches and connections warm up, and an instance that still fails is found at
            little cost.
        count_tool_errors: Count a tool's own error as a failure of its instance. Default False: the instance did its work.
    """

    PART = "outlier-detection"
    consecutive_failures: Annotated[int | None, optional(_count(MAX_CONSECUTIVE_FAILURES))] = 5
    base_ejection_time: Annotated[
        float,
        _also(
            _SECONDS,
            lambda value: value <= MAX_EJECTION_S,
            "{!r} is more than the longest ejection",
            f"give at most {MAX_EJECTION_S:g}",
        ),
    ] = 30.0
    max_ejection_ratio: Annotated[float, _ratio(lambda value: 0 < value <= 1, "give a share above 0 and at most 1")] = (
        0.5
    )
    panic_threshold: Annotated[
        float, _ratio(lambda value: 0 <= value <= 1, "give a share from 0 to 1; 0: only when all fail")
    ] = 0.5
    slow_start_window: SecondsOrNone = 30.0
    count_tool_errors: Flag = False


_OUTLIER_DETECTION: Final = _PartRule(
    OutlierDetection(), "{1} is not an object", 'write {"consecutive-failures": 3}, or null for off'
)


# Retry settings: attempts of one call, the backoff between them, and the retry budget.
#
# In a descriptor: ``"retry": {"max-attempts": 3, "max-backoff": 5}``, or the number of attempts alone, ``"retry": 3``;
# null: off.


MAX_ATTEMPTS = 10
"""More is a slip: a call that failed ten times fails again."""


_BUDGET_FIX: Final = "give the share of calls, for instance 0.2"
_ERROR_TYPES: Final = _texts(
    lambda _: True, "{!r} is not a list of error types", 'give their names, for instance ["busy"]'
)


class Retry(Settings, frozen=True):
    """Number, time and share of repeated attempts. Which calls may be repeated is no setting: see
    :mod:`dispatch.policy`.

    Attributes:
        max_attempts: Attempts of one call, the first one included; 1: no retry; at most 10. Default 3: more attempts rarely
            succeed and add load to a service in trouble (Google's SRE book, ch. 21).
        initial_backoff: Seconds; the wait before the second attempt is random between 0 and this, and its bound doubles with
            each further one ("full jitter"). Default 0.05: as in the AWS SDKs' retry mode 2.1.
        max_backoff: Seconds at which the doubling ends; at least ``initial_backoff``. Default 2: an agent waits.
        budget_ratio: Retries and hedges together, as a share of the tool's calls of the last 10 s, 0 to 1; three a second
            are always allowed. Default 0.2: as in Envoy, Finagle and failsafe-go; when everything fails, a service receives
            a fifth more than its load, not three times its load.
        retryable_errors: Types of the tool's own errors after which another attempt can succeed. Default none: an error that
            the tool answered is its answer.
    """

    PART = "retry"
    max_attempts: Annotated[int, _whole(1, MAX_ATTEMPTS, "give 3, or 1 for no retry")] = 3
    initial_backoff: Seconds = 0.05
    max_backoff: Seconds = 2.0
    budget_ratio: Annotated[
        float, _number(_BUDGET_FIX, lambda value: 0 <= value <= 1, "{!r} is not from 0 to 1", _BUDGET_FIX)
    ] = 0.2
    retryable_errors: Annotated[tuple[str, ...], _ERROR_TYPES] = ()

    def _find_conflicts(self, report: Report) -> None:
        if self.max_backoff < self.initial_backoff:
            problem = f"{self.max_backoff!r} is less than 'initial-backoff' ({self.initial_backoff!r})"
            report.add_error("retry.max-backoff", problem, "give the longest wait, for instance 2")


DEFAULT_RETRY = Retry()
_RETRY: Final = _PartRule(
    DEFAULT_RETRY,
    "{!r} is neither a number of attempts nor an object",
    'write 3, {"max-attempts": 3}, or null for no retry',
    (int,),
    "max-attempts",
)


# Circuit breaker settings: when a tool's breaker opens, for how long, and how it closes.
#
# In a descriptor: ``"breaker": {"consecutive-failures": 5, "open-duration": 2}``; null: off.


WINDOW_CALLS = 100
"""Calls in the count window: at high rates the breaker reacts within a second. No policy sets it."""
MAX_HALF_OPEN_CALLS = 100
"""Half-open calls of the first round: more are traffic, not probes."""
MIN_OPEN_SECONDS = 0.001
"""The shortest open duration: below it a breaker has no effect."""


class Breaker(Settings, frozen=True):
    """When a circuit breaker opens, for how long, and how it closes. Times are in seconds, shares between 0 and 1.

    The breaker opens by the first rule that applies: share of failures, share of slow calls, consecutive failures, time
    without a success. Timeouts and transport errors are failures, unless they originate locally, or at one instance while
    another one answers (:class:`dispatch.Origin`). A stream is a success, and as slow as its first chunk, when that chunk
    has arrived; its later end counts for its instance only (``outlier_detection``). What a policy does not set is a constant
    of :class:`dispatch.resilience.breaker.BreakerRules`. Defaults without another source are those of Hystrix.

    Attributes:
        failure_rate: Share of failures that opens the breaker, in the last 100 calls or in the last 30 s, whichever
            reaches it first. Default 0.5: at half the work lost, refusing calls costs no more than making them.
        min_calls: Calls in a window below which no share is judged. At most 100, which the window holds. Default 20: of
            fewer calls, half fail by chance.
        consecutive_failures: Failures without a success between them that open at once; the time between them does not
            matter; None: no such rule. Default 10: a dead service is found with half the calls that a share needs; at a
            failure rate of one half, ten in a row have a chance of one in a thousand.
        slow_call_duration: Seconds from which a call is slow, whatever its outcome; 80 % slow calls open the breaker; None:
            no call is slow. Default None: slow differs by tool (a tool that asks a language model takes ten seconds), and no
            default may stop a working tool. A timeout is a failure anyway.
        open_duration: Seconds that the breaker stays open the first time, ± 50 % at random, doubled with each opening.
            Default 5 (Hystrix, Finagle): about the time of a restart.
        max_open_duration: Seconds of the longest open time, jitter included, unless the service itself asks for longer.
            Default 300 (Finagle, Envoy).
        half_open_calls: Concurrent calls that a half-open breaker admits in its first round; the second and third round
            admit twice and four times as many. Default 3: a single call is decided by chance.
        count_tool_errors: Count a tool's own error as a failure. Default False: the service did its work.
    """

    PART = "breaker"
    failure_rate: Annotated[
        float,
        _number(
            "give a share, for instance 0.5",
            lambda value: 0 < value <= 1,
            "{!r} is out of range",
            "give a share above 0 and at most 1, for instance 0.5",
        ),
    ] = 0.5
    min_calls: Annotated[int, _count(WINDOW_CALLS)] = 20
    consecutive_failures: Annotated[int | None, optional(_count(MAX_CONSECUTIVE_FAILURES))] = 10
    slow_call_duration: SecondsOrNone = None
    open_duration: Annotated[
        float,
        _also(
            _SECONDS,
            lambda value: value >= MIN_OPEN_SECONDS,
            "{!r} is too short",
            f"give {MIN_OPEN_SECONDS} or more, for instance 5",
        ),
    ] = 5.0
    max_open_duration: Seconds = 300.0
    half_open_calls: Annotated[int, _count(MAX_HALF_OPEN_CALLS)] = 3
    count_tool_errors: Flag = False

    def _find_conflicts(self, report: Report) -> None:
        if self.open_duration > self.max_open_duration:
            problem = f"{self.open_duration!r} is more than 'max-open-duration', {self.max_open_duration!r}"
            report.add_error("breaker.open-duration", problem, "give at most that")


_BREAKER: Final = _PartRule(Breaker(), "{!r} is not an object", 'write {"failure-rate": 0.5}, or null for off')


# Rate limits of tools and users: a rate, a burst, the longest wait, and the users' weights.


UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
"""Seconds of each unit of time of a rate."""
MAX_PER_SECOND = 1_000_000.0
"""Calls per second; one process never reaches more, so that a higher limit has no effect."""
MAX_BURST = 1_000_000.0
MAX_WEIGHT = 1_000.0
"""The largest weight; the smallest is one by this."""
MAX_WEIGHTS = 10_000

_TEXT = re.compile(r"([0-9]+(?:\.[0-9]+)?)/([smhd])", re.ASCII)
_EXAMPLE = 'write a number and s, m, h or d, for instance "100/s", "10/m" or "0.5/s"'
_OBJECT = 'write "100/s" or {"rate": "100/s", "burst": 20}'


_RATE: Final = require(
    (lambda text: _calls_per_second(text) is not None, "{!r} is not a rate", _EXAMPLE),
    (
        lambda text: 0 < _calls_per_second(text) <= MAX_PER_SECOND,
        "{!r} is out of range",
        "give more than 0 and at most 1000000 a second; for no limit, omit the key",
    ),
)
_BURST_FIX: Final = "give the calls that are admitted at once, from 1 (evenly spaced) to 1000000"
_BURST: Final = require(
    (lambda value: _is_finite(value) and 1 <= value <= MAX_BURST, "{!r} is not a number from 1", _BURST_FIX)
)


def _calls_per_second(text: object) -> Any:
    found = _TEXT.fullmatch(text) if isinstance(text, str) else None
    return None if found is None else float(found[1]) / UNITS[found[2]]


def _read_rate(text: Any, report: Report, path: str) -> Any:
    if _RATE(text, report, path.removesuffix(".rate")) is WRONG:
        return WRONG
    calls, unit = text.split("/")
    return f"{_plain(float(calls))}/{unit}"


def _read_weights(raw: Any, report: Report, path: str) -> Any:
    """Return sorted pairs, so that limits with the same weights are equal and have the same hash."""
    try:
        pairs = dict(raw)
    except (TypeError, ValueError):
        return refuse(report, path, f"{raw!r} is not an object", 'write {"batch": 0.5, "ann": 4}')
    if len(pairs) > MAX_WEIGHTS:
        return refuse(report, path, f"{len(pairs)} are too many", f"give at most {MAX_WEIGHTS}; the rest have 1")
    for user, weight in pairs.items():
        if not isinstance(user, str):
            return refuse(report, path, f"{user!r} is not a user's name", "give names as text")
        if not _is_finite(weight) or not 1 / MAX_WEIGHT <= weight <= MAX_WEIGHT:
            problem = f"{weight!r} for {user!r} is not a number from 0.001 to 1000"
            return refuse(report, path, problem, "give 1 for an even share")
    return tuple(sorted((user, float(weight)) for user, weight in pairs.items()))


class RateLimit(Settings, frozen=True):
    """A rate limit. In a descriptor ``"100/s"``, or an object with these keys. ``str(limit)`` is the same text, or the same
    object as JSON; :func:`parse_rate_limit` accepts both.

    A leaky bucket (Turner 1986): in ``t`` seconds it admits at most ``burst + rate * t`` calls.

    Attributes:
        rate: Calls per second, minute, hour or day: ``100/s``, ``10/m``, ``1000/h``, ``0.5/s``. No default: only the
            operator of the service knows its capacity.
        burst: Calls that are admitted at once after an idle time; at least 1. None: the number in ``rate``. Default None, as
            in aiolimiter and resilience4j: "10/m" is understood as ten calls at any time within a minute. 1 spaces the calls
            evenly.
        max_wait: Seconds that a call waits, never beyond its deadline; 0: a call above the rate is rejected at once. A call
            that would have to wait for longer is rejected at once, with the time after which it can be repeated. Default 1:
            a caller that would wait for longer does better to call again later.
        weights: Shares of the rate by user while more calls wait than the rate admits; a user without an entry has weight 1.
            From 0.001 to 1000, for at most 10,000 users. Default empty: all users have equal shares.
        scope: ``process``: each dispatcher has the limit; ``fleet``: all dispatchers of one ``connect(fleet="NAME")``
            together have it. Default process: it needs no other dispatcher.
    """

    PART = "rate-limit"
    rate: Annotated[str, _read_rate]
    burst: Annotated[float | None, optional(_BURST)] = None
    max_wait: WaitSeconds = 1.0
    weights: Annotated[Mapping[str, float] | tuple[tuple[str, float], ...], _read_weights] = ()
    scope: Scope = "process"

    def _find_conflicts(self, report: Report) -> None:
        if self.burst is None and self._calls > MAX_BURST:
            problem = "it is missing, and the number in 'rate' is too large for it"
            report.add_error("rate-limit.burst", problem, _BURST_FIX)

    @property
    def _calls(self) -> float:
        return float(self.rate.split("/")[0])

    @property
    def per_second(self) -> float:
        """Calls per second."""
        return self._calls / UNITS[self.rate[-1]]

    def has_buckets_of(self, other: RateLimit | None) -> bool:
        """Whether calls that ``other`` has counted count for this limit: only who waits, and for how long, may differ."""
        if other is None:
            return False
        own, others = ((each.per_second, each.capacity, each.scope) for each in (self, other))
        return own == others

    @property
    def capacity(self) -> float:
        """``burst``, or if that is None the number in ``rate``, at least 1."""
        return max(1.0, self._calls) if self.burst is None else float(self.burst)

    def __str__(self) -> str:
        document = self.as_document()
        return document if isinstance(document, str) else msgspec.json.encode(scalar_value(document)).decode()

    def as_document(self) -> str | dict[str, Any]:
        """The value for a descriptor: the text of the rate, or an object of the keys that differ from their defaults."""
        document = {
            key: getattr(self, field)
            for field, key, default in zip(
                self.__struct_fields__[1:], self.__struct_encode_fields__[1:], self.__struct_defaults__, strict=True
            )
            if getattr(self, field) != default
        }
        if not document:
            return self.rate
        if self.weights:
            document["weights"] = dict(self.weights)
        return {"rate": self.rate, **document}


def parse_rate_limit(raw: object, key: str = "rate-limit") -> RateLimit:
    """Parse a rate limit.

    Args:
        raw: text such as ``100/s``, an object with the keys of :class:`RateLimit`, such an object as JSON text, or a
            :class:`RateLimit`.
        key: the policy key that has the value, for errors, such as ``rate-limit``.

    Raises:
        PolicyError: the value is not valid; the error's ``key`` begins with ``key``.
    """
    found = Report("")
    read = _RATE_LIMIT(raw, found, key)
    if raw is None:
        found.add_error(key, "None is neither text nor an object", _OBJECT)
    _raise_all(found)
    return read  # type: ignore[no-any-return] # a rule returns anything


def _plain(number: float) -> str:
    """Format a number as :data:`_TEXT` accepts it: no exponent, no trailing point."""
    if number == int(number):
        return str(int(number))
    return format(Decimal(repr(number)), "f")


def _is_finite(value: Any) -> bool:
    return is_number(value) and math.isfinite(value)


class _RateLimitRule(_PartRule):
    """A rate has no defaults: it is replaced as a whole. It may also be an object in a text."""

    def __call__(self, raw: Any, report: Report, path: str, _base: Any = None) -> Any:
        if isinstance(raw, str) and raw.startswith("{"):
            try:
                raw = msgspec.json.decode(raw)
            except msgspec.DecodeError as error:
                return refuse(report, path, f"it is not a JSON object ({error})", self.fix)
        read = super().__call__(raw, report, path)
        if isinstance(raw, Mapping) and "rate" not in raw:
            return refuse(report, f"{path}.rate", "it is missing", _EXAMPLE)
        return read


_RATE_LIMIT: Final = _RateLimitRule(RateLimit("1/s"), "{!r} is neither text nor an object", _OBJECT, (str,), "rate")


_QUOTA_TEXT = re.compile(r"([1-9][0-9]{0,11})/(day|month)", re.ASCII)
_QUOTA: Final = require(
    (
        lambda text: isinstance(text, str) and _QUOTA_TEXT.fullmatch(text) is not None,
        "{!r:.80} is not a quota",
        'write calls of a day or a month, for instance "1000/day" or "50000/month"',
    )
)


def parse_quota(quota: str) -> tuple[int, str]:
    """Return the calls of a valid quota, and ``day`` or ``month``."""
    calls, per = quota.split("/")
    return int(calls), per


# Settings of service level objectives.
#
# In a descriptor: ``"slo": {"availability": 0.99, "latency": 2.0}``, or the share of good calls alone, ``"slo": 0.99``;
# null: no objective. Objectives change no call: ``dispatch rules export`` creates alerts from them.


MIN_OBJECTIVE, MAX_OBJECTIVE = 0.5, 0.9999
"""Below a half an objective has no use; less than one bad call in ten thousand is too rare to be measured in the three days
that alerts evaluate."""
MAX_LATENCY = 81.92
"""Seconds: the largest bound of the histogram of durations (``dispatch.telemetry.observers.DURATION_BUCKETS``). Longer
durations are not distinguished."""


def _objective(example: str) -> Rule:
    fix = f"give the share of calls, for instance {example}"
    return _number(
        fix,
        lambda value: MIN_OBJECTIVE <= value <= MAX_OBJECTIVE,
        f"{{!r}} is not from {MIN_OBJECTIVE:g} to {MAX_OBJECTIVE:g}",
        f"{fix} (99 % is 0.99; 1 would allow no failure at all)",
    )


_LATENCY: Final = _also(
    _SECONDS,
    lambda value: value <= MAX_LATENCY,
    f"{{!r}} is more than {MAX_LATENCY:g}, and longer times are not distinguished",
    "give seconds, for instance 2",
)


class Slo(Settings, frozen=True):
    """A service level objective of a tool, over any time. docs/how-to/runbook.md says which calls are good.

    Attributes:
        availability: the share of calls that are good, from 0.5 to 0.9999. Bad are timeouts, errors of transport, and calls
            that were refused or throttled; the tool's own error is its answer, and good. None: not promised.
        latency: seconds that a successful call may take, all its attempts and waits included; at most 81.92. It is measured
            at the next larger bucket of the histogram (2 s at 2.56 s), so that no call that kept the promise counts as slow.
            None: not promised.
        latency_share: the share of successful calls that must not take longer, from 0.5 to 0.9999. 0.95: as is usual
            for a latency that people wait for; a stricter one is about single calls.
    """

    PART = "slo"
    availability: Annotated[float | None, optional(_objective("0.99"))] = None
    latency: Annotated[float | None, optional(_LATENCY)] = None
    latency_share: Annotated[float, _objective("0.95")] = 0.95

    def _find_conflicts(self, report: Report) -> None:
        if self.availability is None and self.latency is None:
            fix = "give 'availability' or 'latency', or write null for no objective"
            report.add_error("slo", "it sets no objective", fix)


class _SloRule(_PartRule):
    """Objectives have no defaults."""

    def __call__(self, raw: Any, report: Report, path: str, base: Any = None) -> Any:
        raw = {"availability": None, **raw} if base is None and isinstance(raw, Mapping) else raw
        return super().__call__(raw, report, path, base)


_SLO: Final = _SloRule(
    Slo(availability=MIN_OBJECTIVE),
    "{!r} is neither a share nor an object",
    'write 0.99, {"availability": 0.99, "latency": 2}, or null for no promise',
    (int, float),
    "availability",
)


# The hedging delay: when a second attempt starts beside a slow first one.
#
# In a descriptor: ``"hedging": "p95"``, or ``"hedging": 0.2``; null: off.


MIN_PERCENT, MAX_PERCENT = 50.0, 99.9
"""Percentiles of a hedging delay: earlier than half of the replies costs too much, later than 999 of 1,000 helps no call."""

_PERCENTILE = re.compile(r"p(\d{2}(?:\.\d{1,3})?)", re.ASCII)


def _read_hedging(delay: Any, report: Report, path: str) -> Any:
    if not isinstance(delay, str):
        return _SECONDS(delay, report, path)
    found = _PERCENTILE.fullmatch(delay)
    if found is not None and MIN_PERCENT <= float(found[1]) <= MAX_PERCENT:
        return delay
    return refuse(report, path, f"{delay!r} is not a percentile from p50 to p99.9", 'give "p95", or seconds')


def hedging_quantile(delay: float | str) -> float | None:
    """The share of attempts that end before the delay, which is valid: 0.95 for ``"p95"``; None for one in seconds."""
    return float(delay[1:]) / 100 if isinstance(delay, str) else None


# The policy of a tool: limits of its calls and settings of its guards.
#
# In descriptors the keys are kebab-case (``"policy": {"timeout": 10, "retry": {"max-attempts": 2}, "rate-limit": "9/s"}``).
# Policies merge key by key, also within a part: defaults ← service ← tool ← call.


CHECKS: Final = ("model", "always", "never")
"""Values of ``check-arguments``."""


_CHECK: Final = require((CHECKS.__contains__, "{!r:.80} is unknown", f"give one of {', '.join(CHECKS)}"))


def _read_single_flight(value: object, report: Report, path: str) -> Any:
    return False if value is None else _FLAG(value, report, path)  # off, as null is for every part


class Policy(Settings, frozen=True):
    """Limits of the calls of a tool, and settings of its guards. Times are in seconds, sizes in bytes.

    Attributes:
        timeout: Seconds for the whole call, every attempt and wait included. Default 30: longer than nearly every tool
            takes, and short enough that an agent is not stalled for minutes (TrustGraph's own default is 600 s).
        attempt_timeout: Seconds for one attempt. None: each attempt of a repeatable tool, except the last, gets an equal
            share of the remaining time, and at most twenty times the 95th percentile of the tool's durations (1 s at least)
            once that is known, and a call that began later was answered; attempts of other tools get all the remaining
            time. Default None: it follows the tool's durations, and a shorter limit for a tool that cannot be repeated only
            discards work.
        stream_timeout: Seconds for a whole stream, from the request to its last chunk. Default 300: a long generated text.
        stream_idle_timeout: Seconds of the longest gap between two chunks, and before the first; while chunks wait for
            their reader, seconds without a read. Default 30: as one call.
        max_response_bytes: Bytes of the reply of one call, over all its chunks. Default 64 MiB: twelve times the broker's
            largest message.
        known_instances_only: Send requests to known instances of dispatch's service base only. While none is known, a call
            waits for one, as long as the tool could still be executed (``no-instance`` then, or 30 s after the last one was
            lost). Otherwise the request of a service that has not announced itself within a second goes to the shared topic,
            where third-party instances may listen. Default False: third-party instances do not announce themselves, and a
            broker does not say that a topic has no consumer, so that only the operator of the service knows.
        max_request_bytes: Bytes of the request of one call. Default 64 MiB, as ``max_response_bytes``. Above the broker's
            largest message, requests and replies are sent in fragments; only dispatch's own instances accept them.
        retry: Retries of a call that may be repeated; a number alone is ``max_attempts``; None: no retry, and hedges keep
            the default budget. Default on: a request that was lost, or refused for the moment, is worth another attempt.
        hedging: Delay after which a second attempt starts at another instance beside a slow first one; the first reply
            counts. Seconds, or a percentile of the tool's attempt durations, learnt as it is called, from ``"p50"`` to
            ``"p99.9"``. ``"p95"`` hedges one call in twenty and removes the tail ("The Tail at Scale", Dean and Barroso
            2013); 5 % of the calls are hedged at most. None: no hedging. Default None: it costs load, and is only for tools
            declared read-only or idempotent.
        breaker: Circuit breaker of the tool: when it opens, for how long, and how it closes; None: no breaker. Default on:
            a dead service costs each of its callers the whole timeout.
        bulkhead: Limit of calls in flight; a number alone is ``max_concurrent_calls``; None: no limit. Default on: calls
            that wait for one slow tool must not take the capacity of all others.
        rate_limit: Limit of calls of all users together. None: no limit. Default None: only the operator of the service
            knows its capacity.
        user_rate_limit: Limit of each user's calls of this tool. None: no limit. Default None: as for ``rate_limit``.
        shared_user_rate_limit: Limit of each user's calls of all tools together that have the same value of this key.
            None: no limit. Default None: as for ``rate_limit``.
        quota: Calls of all users together in a calendar day or month (UTC): ``"1000/day"``, ``"50000/month"``. The
            dispatchers of one ``connect(fleet="NAME")`` share it, and it survives the end of all of them; without a fleet
            each process counts for itself, from 0 at its start. None: no quota. Default None: as for ``rate_limit``.
        balancing: Choice of the instance for each request; a text alone is ``strategy``; None: round-robin. Default
            round-robin: each in turn, which is what people expect.
        outlier_detection: Ejection and slow start of instances; None: neither, and an instance that throttles is spared for
            as long as it asks. Default on: a dead instance must not receive every n-th call without end.
        single_flight: Equal calls in flight at the same time share one exchange; only for tools declared read-only. Default
            False: two replies to equal calls may be meant to differ.
        slo: Service level objectives of the tool, for alerts (``dispatch rules export``); a number alone is
            ``availability``. None: no objective. Default None: only the operator of the service knows.
        check_arguments: Calls whose arguments are checked against the tool's schema before anything is sent. ``model``:
            those that a model has written, and all of tools that this process executes; ``always``; ``never``. Default
            ``model``: models invent arguments, and a program's own calls are checked by the service.
        max_result_chars: Characters of a result that a model is shown at once; the rest is stored, and read page by page.
            Default 50000: about 12,000 tokens, a tenth of the context of a usual model.
    """

    timeout: Seconds = 30.0
    attempt_timeout: SecondsOrNone = None
    stream_timeout: Seconds = 300.0
    stream_idle_timeout: Seconds = 30.0
    max_response_bytes: Size = 64 * 1024 * 1024
    max_request_bytes: Size = 64 * 1024 * 1024
    known_instances_only: Flag = False
    retry: Annotated[Retry | None, _RETRY] = DEFAULT_RETRY
    hedging: Annotated[float | str | None, optional(_read_hedging)] = None
    breaker: Annotated[Breaker | None, _BREAKER] = Breaker()
    bulkhead: Annotated[Bulkhead | None, _BULKHEAD] = Bulkhead()
    rate_limit: Annotated[RateLimit | None, _RATE_LIMIT] = None
    user_rate_limit: Annotated[RateLimit | None, _RATE_LIMIT] = None
    shared_user_rate_limit: Annotated[RateLimit | None, _RATE_LIMIT] = None
    quota: Annotated[str | None, optional(_QUOTA)] = None
    balancing: Annotated[Balancing, _BALANCING] = Balancing()
    outlier_detection: Annotated[OutlierDetection | None, _OUTLIER_DETECTION] = OutlierDetection()
    single_flight: Annotated[bool, _read_single_flight] = False
    slo: Annotated[Slo | None, _SLO] = None
    check_arguments: Annotated[Literal["model", "always", "never"], _CHECK] = "model"
    max_result_chars: Size = 50_000

    @classmethod
    @explain_keywords
    def load(cls, file: str | Path) -> Policy:
        """Load a policy from a file in JSON or YAML with the keys of a descriptor's ``policy``, over the defaults.

        Raises:
            PolicyError: the file cannot be read, or is invalid; the error lists every mistake.
        """
        return parse_policy(load_policy_keys(file))

    def merged(self, raw: Mapping[str, Any]) -> Policy:
        """Return this policy with the values of ``raw``, whose keys are kebab-case.

        Raises:
            PolicyError: a key is unknown, or a value is invalid; the error lists every mistake.
        """
        return parse_policy(raw, base=self)


DEFAULT_POLICY = Policy()
"""The defaults."""
PolicyLike = Policy | Mapping[str, Any]
"""A policy, or an object of its keys as in a descriptor: ``{"timeout": 10, "rate-limit": "9/s"}``, over the defaults."""


def read_policy(given: PolicyLike | None, base: Policy = DEFAULT_POLICY) -> Policy:
    """Return the policy that a program gives: a :class:`Policy`, or an object as in a descriptor, merged over ``base``.
    None: ``base``.

    Raises:
        TypeError: it is neither.
        PolicyError: an unknown key, or an invalid value.
    """
    if given is None or isinstance(given, Policy):
        return base if given is None else given
    if not isinstance(given, Mapping):
        raise TypeError(f"policy must be dispatch.Policy(timeout=10) or {{'timeout': 10}}, not {describe_type(given)}.")
    return parse_policy(given, base)


def parse_policy(
    raw: object, base: Policy = DEFAULT_POLICY, warn: Callable[[str, str, str], None] | None = None
) -> Policy:
    """Return the policy of a descriptor's ``policy`` object, merged over ``base``. ``warn`` gets the key, problem and fix of
    what is valid and probably a mistake.

    Raises:
        PolicyError: not an object, an unknown key, or an invalid value; the error lists every mistake.
    """
    if not isinstance(raw, Mapping):
        raise PolicyError("policy", f"{type(raw).__name__} is not an object", 'write {"timeout": 10}')
    found = Report("")
    read: Policy = _merge_keys(base, raw, found, "")
    _raise_all(found)
    if warn is not None:
        for each in found.problems:
            warn(each.key, each.problem, each.fix)
    return read


MAX_FILE_BYTES: Final = 1024 * 1024
"""Bytes of the largest file with a policy; one with weights of 10,000 users has a quarter of it."""
_FILE_EXAMPLE: Final = 'write an object with the keys of a policy: {"timeout": 10, "retry": {"max-attempts": 2}}'


def load_policy_keys(file: str | Path, warn: Callable[[str, str, str], None] | None = None) -> Mapping[str, Any]:
    """Return the keys of the policy in a file, which are valid over the defaults. ``warn``: see :func:`parse_policy`.

    Raises:
        PolicyError: as :meth:`Policy.load`.
    """
    name = excerpt(str(file), 4096)
    try:
        raw = load_document(file, MAX_FILE_BYTES, "name a file that contains only a policy", _FILE_EXAMPLE)
        if not isinstance(raw, dict):
            raise DocumentError(("", f"the file contains {describe_kind(raw)}, not an object", _FILE_EXAMPLE))
        if list(raw) == ["policy"] and isinstance(raw["policy"], dict):
            raise DocumentError(("policy", "the keys are one level too deep", f"remove 'policy'; {_FILE_EXAMPLE}"))
        parse_policy(raw, warn=warn)
    except (DocumentError, PolicyError) as error:
        first, *others = [(excerpt(key, 62), excerpt(problem, 200), fix) for key, problem, fix in error.mistakes]
        raise PolicyError(*first, others, name) from None
    return raw


# The values of a policy, and where each comes from.


DEFAULT_SOURCE: Final = "default"
"""Source of a value that no layer sets."""


class PolicyValue(NamedTuple):
    """A value in force.

    Attributes:
        key: as in a descriptor: ``timeout``, ``retry.max-attempts``; that of the part alone where the part is off.
        value: as in JSON; None: off, or no value. A rate's ``burst`` is the number in force.
        source: name of the last layer that sets it, or :data:`DEFAULT_SOURCE`.
    """

    key: str
    value: Any
    source: str


def explain_policy(policy: Policy, layers: Iterable[tuple[str, PolicyLike]]) -> Iterator[PolicyValue]:
    """Yield each value of ``policy`` with its source.

    Args:
        policy: in force: the defaults merged with all layers.
        layers: what each source sets, the lowest first: keys as in a descriptor, all of them, or the values of a policy that
            differ from the defaults.
    """
    sources: dict[str, str] = {}
    for source, layer in layers:
        _trace(sources, source, layer)
    for key, (field, _) in rules_of(Policy).items():
        part = getattr(policy, field)
        values = {key: part}
        if isinstance(part, Settings):
            names = zip(part.__struct_encode_fields__, part.__struct_fields__, strict=True)
            values = {f"{key}.{name}": getattr(part, inner) for name, inner in names}
        if isinstance(part, RateLimit):
            values |= {f"{key}.burst": part.capacity, f"{key}.weights": dict(part.weights)}
        for path, value in values.items():
            yield PolicyValue(path, msgspec.to_builtins(value), sources.get(path, DEFAULT_SOURCE))


def _trace(sources: dict[str, str], source: str, layer: PolicyLike) -> None:
    """Record the keys that ``layer`` sets over the ones before it."""
    rules = rules_of(Policy)
    if isinstance(layer, Policy):
        own = {key: getattr(layer, field) for key, (field, _) in rules.items()}
        layer = {key: own[key] for key, (field, _) in rules.items() if own[key] != getattr(DEFAULT_POLICY, field)}
    for key, raw in layer.items():
        field, rule = rules[key]
        sources[key] = source
        if isinstance(rule, _PartRule):
            if (
                raw is None or isinstance(raw, Settings) or isinstance(rule, _RateLimitRule)
            ):  # it replaces the whole part
                for former in [each for each in sources if each.startswith(f"{key}.")]:
                    del sources[former]
            sources |= {f"{key}.{name}": source for name in _list_keys(rule, raw, getattr(DEFAULT_POLICY, field))}


def _list_keys(rule: _PartRule, raw: Any, default: Settings | None) -> Iterable[str]:
    """Return the keys of a part that ``raw`` sets."""
    if raw is None:
        return () if rule.off is None else (rule.key,)
    if isinstance(raw, Settings):
        keys = rules_of(type(raw))
        if default is None:  # the part is on because of this layer
            return keys
        return [key for key, (field, _) in keys.items() if getattr(raw, field) != getattr(default, field)]
    if isinstance(rule, _RateLimitRule) and isinstance(raw, str) and raw.startswith("{"):
        raw = msgspec.json.decode(raw)
    return raw if isinstance(raw, Mapping) else (rule.key,)


# Repeat safety: the declarations of a tool, and the refusal of settings that contradict them.


class Declared(Protocol):
    """The declarations of a tool, with the names of MCP's annotations."""

    @property
    def read_only(self) -> bool:
        """The tool changes no state."""

    @property
    def idempotent(self) -> bool:
        """A repeated call has no further effect."""

    @property
    def destructive(self) -> bool | None:
        """The tool may destroy data; None: not declared, so it may."""


class Annotations(msgspec.Struct, metaclass=NamedFields, frozen=True):
    """Declarations without a descriptor. The defaults are those of a tool that declares nothing."""

    read_only: bool = False
    idempotent: bool = False
    destructive: bool | None = None

    def __post_init__(self) -> None:
        check_instance("read_only", self.read_only, bool, "True or False")
        check_instance("idempotent", self.idempotent, bool, "True or False")
        check_instance("destructive", self.destructive, (bool, NoneType), "True, False, or None")


UNDECLARED = Annotations()
"""The declarations of an unknown tool, and of a service that is called without a tool."""


def repeatable(tool: Declared) -> bool:
    """Return whether ``tool`` may be executed twice for one call: it is declared read-only or idempotent, and not
    destructive. The second execution of a destructive tool can destroy data that was created after the first."""
    return (tool.read_only or tool.idempotent) and not tool.destructive


def check_repeats(tool: Declared, policy: Policy, own: Collection[str]) -> None:
    """Refuse settings of a tool that contradict its declarations. Called when the tool is loaded.

    Inherited settings are safe: a tool that is not repeatable is retried only if it was not executed, and is not hedged.
    Settings of the tool itself are refused, because their author expects them to have an effect.

    Args:
        tool: its declarations.
        policy: in force for it.
        own: keys, as in a descriptor, of the tool's own policy.

    Raises:
        PolicyError: the settings retry or hedge a destructive tool, hedge one that is neither read-only nor idempotent, or
            share the reply of one that is not read-only.
    """
    if "hedging" in own and policy.hedging is not None:
        if tool.destructive:
            raise PolicyError(
                "hedging", "the tool is declared 'destructive', and a hedge runs it twice", "write null for this tool"
            )
        if not repeatable(tool):
            raise PolicyError(
                "hedging",
                "the tool is neither 'read-only' nor 'idempotent', and a hedge runs it twice",
                "declare the tool so if it is so, or write null for this tool",
            )
    if tool.destructive and "retry" in own and policy.retry is not None and policy.retry.max_attempts > 1:
        raise PolicyError(
            "retry",
            "the tool is declared 'destructive', and a retry may run it twice",
            "leave 'retry' out: a request that was not executed is retried all the same",
        )
    if "single-flight" in own and policy.single_flight and not tool.read_only:
        raise PolicyError(
            "single-flight",
            "the tool is not declared 'read-only', and each of its calls may have to be made",
            "declare the tool so if it is so, or leave it out",
        )


__all__ = [
    "DEFAULT_POLICY",
    "DEFAULT_RETRY",
    "MAX_SECONDS",
    "Annotations",
    "Balancing",
    "Breaker",
    "Bulkhead",
    "OutlierDetection",
    "Policy",
    "PolicyError",
    "PolicyLike",
    "RateLimit",
    "Retry",
    "Slo",
    "check_repeats",
    "check_seconds",
    "parse_policy",
    "parse_quota",
    "read_policy",
    "repeatable",
]
