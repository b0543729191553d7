"""Load-balancing settings: which instance of a service receives the next request.

In a descriptor: ``"balancing": "least-request"``, or ``{"strategy": "least-request", "choice-count": 8}``.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Final

import msgspec

from dispatch._internal.arguments import NamedFields
from dispatch.policy.validation import PolicyError, merge_keys

STRATEGIES: Final = ("round-robin", "weighted", "least-request", "peak-ewma")
"""The names that ``Balancing.strategy`` takes."""
MAX_CHOICES = 256
"""Instances compared for one request: as many as a dispatcher knows of one service."""


class Balancing(msgspec.Struct, metaclass=NamedFields, frozen=True, rename="kebab"):
    """How the instance for a request is chosen. In a descriptor a text alone is the strategy.

    Attributes:
        strategy: ``round-robin``: each instance in turn, whatever its weight. ``weighted``: in turn, as often as its weight
            says, evenly mixed. ``least-request``: of ``choice_count`` instances drawn at random, the one with the fewest
            calls of this dispatcher for its weight. ``peak-ewma``: of two drawn at random, the one that will probably answer
            sooner; the best where instances differ in speed. Default round-robin: it needs no knowledge of the instances,
            and is what people expect.
        choice_count: With ``least-request``, the number of instances that are compared, from 2 to 256; as many as there are
            instances compares all. Default 2 (Envoy): the cost does not grow with the instances, and the 99th percentile is
            within a few per cent of comparing all.
    """

    strategy: str = "round-robin"
    choice_count: int = 2

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            near = difflib.get_close_matches(str(self.strategy), STRATEGIES, 1)
            hint = f"did you mean '{near[0]}'? " if near else ""
            raise PolicyError(
                "balancing.strategy", f"{self.strategy!r} is unknown", f"{hint}known: {', '.join(STRATEGIES)}"
            )
        count = self.choice_count
        if isinstance(count, bool) or not isinstance(count, int) or not 2 <= count <= MAX_CHOICES:
            raise PolicyError(
                "balancing.choice-count",
                f"{count!r} is not a whole number from 2 to {MAX_CHOICES}",
                "give 2, or the number of instances to compare all",
            )


def parse_balancing(raw: object, base: Balancing | None = None) -> Balancing:
    """Parse a descriptor's ``balancing``, laid over ``base``: an object, or a strategy's name; None: round-robin.

    Raises:
        PolicyError: neither an object nor a name, an unknown key, or an invalid value.
    """
    if raw is None:
        return Balancing()
    if isinstance(raw, str):
        raw = {"strategy": raw}
    if not isinstance(raw, Mapping):
        raise PolicyError(
            "balancing", f"{type(raw).__name__} is not an object", 'write "peak-ewma", or null for round-robin'
        )
    return merge_keys(Balancing() if base is None else base, raw, "balancing")
