"""Which instance of a service gets the next call, and when one gets none for a while."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec

from dispatch.policy.validation import PolicyError, check_count, check_flag, check_seconds, laid_over

STRATEGIES: Final = ("round-robin", "weighted", "least-request", "p2c", "peak-ewma")
"""The names that ``Balancing.strategy`` takes."""
MAX_SCAN = 256
"""Instances looked at for one call, at most: as many as a dispatcher knows of one service."""
MAX_CALLS = 100_000
"""The largest number of calls that health may be told to wait for."""
MAX_SIGMA = 10.0
"""Further from the mean than this nothing ever is: a number beyond it is a slip."""


class Balancing(msgspec.Struct, frozen=True, rename="kebab"):
    """How the instance for a call is picked. In a descriptor a text alone is the strategy: ``"balancing": "p2c"``.

    Attributes:
        strategy: who is next. ``round-robin``: each in turn, whatever its weight; it needs to know nothing, and is what
            people expect. ``weighted``: in turn, as often as its weight says, evenly mixed. ``least-request``: who has
            fewest calls of ours for its weight. ``p2c``: the same of two drawn at random. ``peak-ewma``: of two drawn
            at random, who will probably answer sooner; the best where instances differ in speed.
        scan: with ``least-request``, the largest number of instances that are all looked at; of more, two are drawn. 8:
            looking at so many costs about a microsecond, and always finds the best.
        decay: seconds in which what is known of an instance's speed loses all but a third (1/e) of its weight. 10
            (Finagle): one slow answer is forgotten within a minute, and an instance that has recovered is tried again
            as soon.
    """

    strategy: str = "round-robin"
    scan: int = 8
    decay: float = 10.0

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            near = difflib.get_close_matches(str(self.strategy), STRATEGIES, 1)
            hint = f"did you mean '{near[0]}'? " if near else ""
            raise PolicyError(
                "balancing.strategy", f"{self.strategy!r} is unknown", f"{hint}known: {', '.join(STRATEGIES)}"
            )
        check_count(self.scan, "balancing.scan", MAX_SCAN)
        check_seconds(self.decay, "balancing.decay")


class Health(msgspec.Struct, frozen=True, rename="kebab"):
    """When an instance is left alone (ejected), for how long, and how it comes back. Times are in seconds, shares in 0 to 1.

    Timeouts and transport errors are failures, unless they arose locally (:class:`dispatch.Origin`). A throttled call is
    none: the instance is only given less work for as long as it asked for. Calls ended by their caller, or by another guard,
    count as nothing. An attempt that was given up because its hedge, begun later, was answered first counts in a row of
    failures, and nowhere else.

    Attributes:
        consecutive: failures in a row that eject; None: never. 5 (Envoy, Finagle): by chance, one in three failing,
            five in a row come once in 243; a dead instance is found out within as many calls.
        sigma: an instance is ejected when its success rate is so many standard deviations below the mean of all; None:
            success rates are not looked at. 1.9 (Envoy). It can speak from five instances on: of four, none is ever so
            far off.
        gap: and so much below the mean at least. 0.1: when all are near perfect, a single failure is many deviations
            away.
        pair_gap: an instance is also ejected when its success rate is so far below the mean of the *other* instances.
            0.3: this works with two, where deviations say nothing, and where several bad ones hide each other in the
            deviation.
        volume: calls of an instance that its success rate needs. 50 (Envoy: 100 within ten seconds, which services of
            slow tools never see): one failure is 2 %, so chance alone hardly reaches ``gap`` where one call in 50 fails.
        interval: how often success rates are looked at; calls that were too few to judge then count half. 10 (Envoy,
            gRPC). For each such time that an instance is well, one of its former ejections is forgotten (gRPC).
        eject_for: the first ejection; the second is twice as long, the third three times. 30 (Envoy, gRPC).
        eject_max: the longest ejection, and the longest that an instance may ask to be spared. 300 (Envoy, gRPC).
        eject_share: the largest share of instances that may be ejected at once. 0.5: more are rarely ill by themselves,
            and the rest could not carry it. One may always be, if two stay.
        panic: when a smaller share than this is not ejected, or all that are left fail, all are used, ejected or not;
            0: only the second counts. 0.5 (Envoy): better some failures than everything on the last one standing.
        slow_start: an instance that is new or comes back gets its full share after this time only; None: at once. 30:
            caches and connections want warming, and one that still fails is found out at little cost.
        slow_start_from: the share of its full share that it begins with. 0.1 (Envoy).
        tool_errors: a tool's own error is a failure of its instance. False: the instance did its work.
    """

    consecutive: int | None = 5
    sigma: float | None = 1.9
    gap: float = 0.1
    pair_gap: float = 0.3
    volume: int = 50
    interval: float = 10.0
    eject_for: float = 30.0
    eject_max: float = 300.0
    eject_share: float = 0.5
    panic: float = 0.5
    slow_start: float | None = 30.0
    slow_start_from: float = 0.1
    tool_errors: bool = False

    def __post_init__(self) -> None:
        if self.consecutive is not None:
            check_count(self.consecutive, "health.consecutive", MAX_CALLS)
        if self.sigma is not None and not 0 < _number(self.sigma, "health.sigma", "1.9") <= MAX_SIGMA:
            raise PolicyError("health.sigma", f"{self.sigma!r} is out of range", "give more than 0 and at most 10")
        for name in ("gap", "pair_gap", "eject_share", "slow_start_from"):
            key = f"health.{name.replace('_', '-')}"
            value = getattr(self, name)
            if not 0 < _number(value, key, "0.5") <= 1:
                raise PolicyError(key, f"{value!r} is out of range", "give a share above 0 and at most 1")
        if not 0 <= _number(self.panic, "health.panic", "0.5") <= 1:
            raise PolicyError("health.panic", f"{self.panic!r} is out of range", "give a share from 0 to 1; 0 is never")
        check_count(self.volume, "health.volume", MAX_CALLS)
        for name in ("interval", "eject_for", "eject_max"):
            check_seconds(getattr(self, name), f"health.{name.replace('_', '-')}")
        if self.slow_start is not None:
            check_seconds(self.slow_start, "health.slow-start")
        if self.eject_for > self.eject_max:
            raise PolicyError(
                "health.eject-for",
                f"{self.eject_for!r} is more than 'eject-max', {self.eject_max!r}",
                "give at most that",
            )
        check_flag(self.tool_errors, "health.tool-errors")

    @property
    def ejects(self) -> bool:
        """Whether an instance can be ejected at all."""
        return self.consecutive is not None or self.sigma is not None


_Part = TypeVar("_Part", Balancing, Health)


def parse_balancing(raw: object, base: Balancing | None = None) -> Balancing:
    """What a descriptor says of balancing, laid over ``base``: an object, or the strategy's name alone; None: round-robin.

    Raises:
        PolicyError: neither, an unknown key, or a value that cannot be.
    """
    if raw is None:
        return Balancing()
    if isinstance(raw, str):
        raw = {"strategy": raw}
    return _parsed(raw, Balancing() if base is None else base, "balancing", '"peak-ewma", or null for round-robin')


def parse_health(raw: object, base: Health | None = None) -> Health | None:
    """What a descriptor says of health, laid over ``base``; None: off.

    Raises:
        PolicyError: not an object, an unknown key, or a value that cannot be.
    """
    if raw is None:
        return None
    return _parsed(raw, Health() if base is None else base, "health", '{"consecutive": 3}, or null for off')


def _parsed(raw: object, base: _Part, part: str, example: str) -> _Part:
    if not isinstance(raw, Mapping):
        raise PolicyError(part, f"{type(raw).__name__} is not an object", f"write {example}")
    return laid_over(base, raw, part)


def _number(value: Any, key: str, example: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise PolicyError(key, f"{value!r} is not a number", f"give a number, for instance {example}")
    return value


NO_HEALTH: Final = Health(consecutive=None, sigma=None, slow_start=None)
"""``"health": null``: passive health checks are off."""
