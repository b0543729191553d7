"""Outlier detection settings: when an instance is ejected, for how long, and how it returns.

In a descriptor: ``"outlier-detection": {"consecutive-failures": 3, "base-ejection-time": 5}``; null: off.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from dispatch._internal.arguments import NamedFields
from dispatch.policy.validation import PolicyError, check_count, check_flag, check_seconds, merge_keys

MAX_CONSECUTIVE_FAILURES = 100_000
MAX_EJECTION_S = 300.0
"""Seconds of the longest ejection, and of the longest pause that an instance may ask for (Envoy's ``max_ejection_time``)."""


class OutlierDetection(msgspec.Struct, metaclass=NamedFields, frozen=True, rename="kebab"):
    """Passive health checks: when an instance is ejected, for how long, and how it returns.

    Timeouts and transport errors are failures, unless they originate locally (:class:`dispatch.Origin`). A throttled call is
    none: the instance receives less work for as long as it asked. Cancelled calls, and calls that another guard rejected,
    are not counted. An attempt that was cancelled because its hedge, begun later, was answered first counts as a consecutive
    failure only. An instance is also ejected when its success rate is far below the others', or when it takes three times as
    long as they do; the constants of these rules are in :class:`dispatch.balancing.outlier_detection.EjectionRules`.

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

    consecutive_failures: int | None = 5
    base_ejection_time: float = 30.0
    max_ejection_ratio: float = 0.5
    panic_threshold: float = 0.5
    slow_start_window: float | None = 30.0
    count_tool_errors: bool = False

    def __post_init__(self) -> None:
        if self.consecutive_failures is not None:
            check_count(self.consecutive_failures, "outlier-detection.consecutive-failures", MAX_CONSECUTIVE_FAILURES)
        check_seconds(self.base_ejection_time, "outlier-detection.base-ejection-time")
        if self.base_ejection_time > MAX_EJECTION_S:
            raise PolicyError(
                "outlier-detection.base-ejection-time",
                f"{self.base_ejection_time!r} is more than the longest ejection",
                f"give at most {MAX_EJECTION_S:g}",
            )
        if not 0 < _check_number(self.max_ejection_ratio, "outlier-detection.max-ejection-ratio") <= 1:
            raise PolicyError(
                "outlier-detection.max-ejection-ratio",
                f"{self.max_ejection_ratio!r} is out of range",
                "give a share above 0 and at most 1",
            )
        if not 0 <= _check_number(self.panic_threshold, "outlier-detection.panic-threshold") <= 1:
            raise PolicyError(
                "outlier-detection.panic-threshold",
                f"{self.panic_threshold!r} is out of range",
                "give a share from 0 to 1; 0: only when all fail",
            )
        if self.slow_start_window is not None:
            check_seconds(self.slow_start_window, "outlier-detection.slow-start-window")
        check_flag(self.count_tool_errors, "outlier-detection.count-tool-errors")


def parse_outlier_detection(raw: object, base: OutlierDetection | None = None) -> OutlierDetection | None:
    """Parse a descriptor's ``outlier-detection``, laid over ``base``; None: off.

    Raises:
        PolicyError: not an object, an unknown key, or an invalid value.
    """
    if raw is None:
        return None
    if not isinstance(raw, Mapping):
        raise PolicyError(
            "outlier-detection",
            f"{type(raw).__name__} is not an object",
            'write {"consecutive-failures": 3}, or null for off',
        )
    return merge_keys(OutlierDetection() if base is None else base, raw, "outlier-detection")


def _check_number(value: object, key: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise PolicyError(key, f"{value!r} is not a number", "give a number, for instance 0.5")
    return value
