"""Alerts about promises. ``look`` promises 99 % good calls, and 95 % of successes within 2 s, measured at 2.56 s."""

from __future__ import annotations

from dispatch.policy import Slo
from tests.dashboards.alerts.case import Case, calls, series

PROMISED = {"look": Slo(availability=0.99, latency=2.0)}


def timed(which: str, **labels: str) -> str:
    return series(
        f"dispatch_call_duration_seconds_{which}", tool="look", service="library", outcome_class="ok", **labels
    )


AVAILABILITY = {"tool": "look", "service": "library", "slo": "availability", "objective": "0.99"}
LATENCY = {"tool": "look", "service": "library", "slo": "latency", "objective": "0.95"}
GOOD, BAD = calls("success"), calls("timeout")
WITHIN, BELOW, ALL = timed("bucket", le="2.56"), timed("bucket", le="1.28"), timed("count")

CLEAN = 300
"""Minutes in which all was well, so that six hours hardly feel what comes then."""


def since(rate: float, before: float = 0, start: int = CLEAN) -> str:
    """So many a minute from ``start`` on, ``before`` until then."""
    at = before * start
    return f"0+{before:g}x{start} {at + rate:g}+{rate:g}x100"


def steps(*levels: tuple[float, int]) -> str:
    """So many a step, for so many steps; then others."""
    said, at = ["0"], 0.0
    for rate, count in levels:
        said.append(f"{at + rate:g}+{rate:g}x{count - 1}")
        at += rate * count
    return " ".join(said)


FAST = (
    Case(
        "DispatchErrorBudgetFastBurn",
        {GOOD: since(80, 100), BAD: since(20)},
        "370m",
        AVAILABILITY,
        {
            "14 % of calls: 14 times what is allowed, for an hour": {GOOD: since(86, 100), BAD: since(14)},
            "less than 14.4 times in the last five minutes": {BAD: steps((0, 300), (20, 62), (13, 20))},
            "less than 14.4 times in the last hour": {BAD: steps((0, 300), (11.5, 60), (20, 20))},
            "it is over: five minutes are clean": {BAD: f"0x{CLEAN} 20+20x62 1260x40"},
            "it has only begun: an hour has hardly felt it": {BAD: since(20, start=364)},
            "errors of the tool are answers": {BAD: "0x400", calls("tool_error"): since(20)},
            "who left does not count, neither as good nor as bad": {BAD: since(5), calls("cancelled"): since(50)},
            "a call refused because of its caller alone does not count, neither as good nor as bad": {
                BAD: since(5),
                calls("refused"): since(50),
                calls("invalid_arguments"): since(50),
            },
            "a tool without a promise": {
                GOOD: "0x400",
                BAD: "0x400",
                calls("success", "other"): since(80, 100),
                calls("timeout", "other"): since(20),
            },
        },
        "20",
        every="370m",
    ),
    Case(
        "DispatchErrorBudgetFastBurn",
        {GOOD: "0+93.4x400", BAD: "0+6.6x400"},
        "370m",
        AVAILABILITY,
        {
            "5.9 times what is allowed, for six hours": {GOOD: "0+94.1x400", BAD: "0+5.9x400"},
            "less than 6 times in the last half hour": {GOOD: "0+92x400", BAD: steps((8, 338), (5.7, 40))},
            "less than 6 times in the last six hours": {GOOD: "0+92x400", BAD: steps((5.4, 340), (8, 40))},
            "it has been over for half an hour": {BAD: "0+8x330 2640x70"},
            "not for long, and six hours have hardly felt it": {BAD: since(8, start=180)},
        },
        "6.6",
        every="370m",
    ),
    Case(
        "DispatchErrorBudgetFastBurn",
        {GOOD: since(0.16, 2), BAD: since(0.09)},
        "370m",
        AVAILABILITY,
        {"fewer than five failures in an hour": {BAD: since(0.08)}},
        "36",
        every="370m",
    ),
    Case(
        "DispatchErrorBudgetFastBurn",
        {GOOD: "0+0.135x400", BAD: "0+0.015x400"},
        "370m",
        AVAILABILITY,
        {"fewer than five failures in six hours": {BAD: "0+0.0135x400"}},
        "10",
        every="370m",
    ),
    Case(
        "DispatchErrorBudgetFastBurn",
        {ALL: since(100, 100), WITHIN: since(20, 99), BELOW: since(10, 80)},
        "370m",
        LATENCY,
        {
            "70 % are slow: 14 times what is allowed": {WITHIN: since(30, 99)},
            "what took from 2 to 2.56 s is good, since nobody can tell": {WITHIN: since(96, 99)},
        },
        "16",
        every="370m",
    ),
    Case(
        "DispatchErrorBudgetFastBurn",
        {GOOD: since(80, 100)} | {calls(each): since(5) for each in ("timeout", "transport", "rejected", "throttled")},
        "370m",
        AVAILABILITY,
        {"half of that": {calls("rejected"): "0x400", calls("throttled"): "0x400"}},
        "20",
        every="370m",
    ),
    Case(  # the tool's own limit or its bulkhead is unavailability, however many calls are refused besides
        "DispatchErrorBudgetFastBurn",
        {GOOD: since(80, 100), calls("throttled"): since(20), calls("refused"): since(900)},
        "370m",
        AVAILABILITY,
        {"they are at the limits of single users": {calls("throttled"): "0x400", calls("refused"): since(920)}},
        "20",
        every="370m",
    ),
)
DAY = 144
"""In steps of ten minutes."""
BEGUN = 2 * DAY + 6
"""Steps in which all was well, with ten times as many calls, so that three days hardly feel what comes then."""


def slow(good: str, bad: str, value: str, **silent: dict[str, str]) -> Case:
    return Case(
        "DispatchErrorBudgetSlowBurn",
        {GOOD: good, BAD: bad},
        "4380m",
        AVAILABILITY,
        silent,
        value,
        step="10m",
        every="4380m",
    )


BUSY = f"0+9600x{BEGUN}"

SLOW = (
    slow(
        f"{BUSY} {9600 * BEGUN + 967}+967x150",
        steps((0, BEGUN), (33, 150)),
        "3.3",
        **{
            "2.9 times what is allowed, for a day": {BAD: steps((0, BEGUN), (28.8, 150))},
            "less than 3 times in the last two hours": {BAD: steps((0, BEGUN), (40, 131), (28.8, 20))},
            "less than 3 times in the last day": {BAD: steps((0, BEGUN), (28, 130), (40, 20))},
            "it has been over for two hours": {BAD: steps((0, BEGUN), (40, 131), (0, 20))},
            "it has only begun: a day has hardly felt it": {BAD: steps((0, 420), (40, 30))},
        },
    ),
    slow(
        "0+989x450",
        "0+11x450",
        "1.1",
        **{
            "as much as is allowed": {BAD: "0+9.98x450"},
            "less than allowed in the last six hours": {BAD: steps((20, 400), (9.5, 50))},
            "less than allowed in the last three days": {BAD: steps((9.2, 396), (13, 50))},
            "it has been over for six hours": {BAD: steps((20, 400), (0, 50))},
            "only since yesterday": {BAD: steps((0, 294), (15, 150))},
        },
    ),
    slow(
        f"{BUSY} {9600 * BEGUN + 0.864}+0.864x150",
        steps((0, BEGUN), (0.036, 150)),
        "4",
        **{"fewer than five failures in a day": {BAD: steps((0, BEGUN), (0.034, 150))}},
    ),
    slow("0+0.588x450", "0+0.012x450", "2", **{"fewer than five failures in three days": {BAD: "0+0.0115x450"}}),
)
