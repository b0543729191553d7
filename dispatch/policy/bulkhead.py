"""How many calls of a tool may run at once, how many may wait for that, and for how long."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from dispatch.policy.validation import PolicyError, check_flag, check_seconds, laid_over

MAX_CONCURRENCY = 10_000
"""More calls of one tool in flight than this were never seen to help; it is a slip, or a limit that limits nothing."""
MAX_QUEUE = 100_000
"""A longer line is memory that nobody waits for: at 1,000 calls a second its last one would wait for 100 s."""
MAX_PRIORITIES = 8
MAX_LIMIT_FACTOR = 100.0


def _key(name: str) -> str:
    return "bulkhead." + name.replace("_", "-")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_whole(name: str, value: object, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise PolicyError(
            _key(name), f"{value!r} is not a whole number from {least} to {most}", f"give a whole number ≥ {least}"
        )


def _check_priorities(value: object) -> None:
    if (
        not isinstance(value, tuple)
        or not all(isinstance(name, str) and name for name in value)
        or len(set(value)) != len(value)
        or not 1 <= len(value) <= MAX_PRIORITIES
    ):
        raise PolicyError(
            _key("priorities"),
            f"{value!r} is not a list of 1 to {MAX_PRIORITIES} different names",
            'write ["interactive", "batch"], the most urgent first',
        )


class Bulkhead(msgspec.Struct, frozen=True, rename="kebab"):
    """How many calls of a tool may run at once, how many may wait for that, and for how long.

    In a descriptor a bare number means ``concurrency``: ``"bulkhead": 16``. Times are in seconds.

    Attributes:
        concurrency: calls in flight at most; not used when ``adaptive`` is on. 64: what one connection publishes without
            the broker dropping any (the publish window), and Little's law makes it 640 calls a second of 0.1 s each.
        queue: calls that may wait for a place. 10,000: a bound on memory (some kilobytes each) and not on bursts;
            ``max_wait`` and ``shed_after`` limit the queue by waiting time, which is the same for a fast tool and a slow
            one. 0: none waits.
        max_wait: the longest that one waits; never longer than its call's time left. 1 s: an agent that is told to go on
            elsewhere after a second has lost little; after 30 s its whole turn.
        adaptive: learn how many may be in flight from how long calls take. False: a learnt limit needs steady traffic to
            learn from, and few tools have it.
        min_limit: the learnt limit is never less. 4: below that there are too few samples to find a way back up.
        initial_limit: where learning begins. 20: as Netflix's and failsafe-go's limiters.
        max_limit: the learnt limit is never more. 200: as theirs.
        max_limit_factor: the learnt limit grows only while it is less than this many times what was in flight. 2: a limit
            half of which is unused says nothing about the rest (Netflix's limiters grow by the same rule).
        freeze_at: nothing is learnt while a larger share of the calls than this times out. 0.1: a stable timeout looks
            like a stable duration, and a limit that learnt from it would climb to its maximum.
        priorities: classes of calls, the most urgent first; a call that names none is of the first. Interactive before
            batch: somebody waits for the one.
        overload_after: a line that has stood this long without being empty for a moment is overload: from then on the
            newest is served first, for it has the most time left. 1 s, as ``max_wait``: a burst that is worked off within
            that time loses no call.
        shed_after: under overload, those that have waited this long are refused when a place goes to another. 0.1 s: a
            tenth of ``max_wait`` (CoDel's target is a twentieth to a tenth of its interval). It stretches by itself where
            places become free more seldom, so that no place stays empty.
    """

    concurrency: int = 64
    queue: int = 10_000
    max_wait: float = 1.0
    adaptive: bool = False
    min_limit: int = 4
    initial_limit: int = 20
    max_limit: int = 200
    max_limit_factor: float = 2.0
    freeze_at: float = 0.1
    priorities: tuple[str, ...] = ("interactive", "batch")
    overload_after: float = 1.0
    shed_after: float = 0.1

    def __post_init__(self) -> None:
        for name in ("concurrency", "min_limit", "initial_limit", "max_limit"):
            _check_whole(name, getattr(self, name), 1, MAX_CONCURRENCY)
        _check_whole("queue", self.queue, 0, MAX_QUEUE)
        for name in ("max_wait", "overload_after", "shed_after"):
            check_seconds(getattr(self, name), _key(name))
        check_flag(self.adaptive, _key("adaptive"))
        if not self.min_limit <= self.initial_limit <= self.max_limit:
            raise PolicyError(
                _key("initial_limit"),
                f"{self.initial_limit} is not from min-limit ({self.min_limit}) to max-limit ({self.max_limit})",
                "give min-limit ≤ initial-limit ≤ max-limit",
            )
        factor = self.max_limit_factor
        if not _is_number(factor) or not 1 < factor <= MAX_LIMIT_FACTOR:
            raise PolicyError(
                _key("max_limit_factor"), f"{factor!r} is not a number above 1 and at most 100", "give for instance 2"
            )
        if not _is_number(self.freeze_at) or not 0 < self.freeze_at <= 1:
            raise PolicyError(
                _key("freeze_at"), f"{self.freeze_at!r} is not a share above 0 and at most 1", "give for instance 0.1"
            )
        _check_priorities(self.priorities)


def parse_bulkhead(raw: object, base: Bulkhead | None = None) -> Bulkhead | None:
    """What a descriptor says of its bulkhead, laid over ``base``: a number (the concurrency) or an object; None: off.

    Raises:
        PolicyError: neither, an unknown key, or a value that cannot be.
    """
    if raw is None or isinstance(raw, Bulkhead):
        return raw
    if _is_number(raw):
        raw = {"concurrency": raw}
    if not isinstance(raw, Mapping):
        raise PolicyError(
            "bulkhead",
            f"{raw!r} is neither a number nor an object",
            'write 16, {"concurrency": 16, "queue": 32}, or null for off',
        )
    changes = {key: tuple(value) if isinstance(value, list) else value for key, value in raw.items()}
    return laid_over(Bulkhead() if base is None else base, changes, "bulkhead")
