"""The plan of a tool: what is in force, where it came from, what has no effect.
Where each value of a plan came from, for any policies of user, service and tool.
The demonstration's live view, and its lines for a pipe.
The demonstration's summary, for people.
What ``dispatch top``, ``tail`` and ``calls show`` draw of the values of admin endpoints, and what their keys do.
"""

from __future__ import annotations

import asyncio
import io
import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from dispatch.calls.guards import ToolGuards, create_rate_limiter
from dispatch.calls.resolution import ToolResolver
from dispatch.catalog import Catalog
from dispatch.cli.admin import AdminError, Answers
from dispatch.cli.check import GUARDS, SERVICE, TOOL, USER, Row, ToolPlan, plan_of
from dispatch.cli.demo import NEXT, format_event, live_view, plain_line, show_summary
from dispatch.cli.screen import (
    View,
    call_line,
    event_line,
    merge,
    render_screen,
    select_rows,
    sparkline,
    waterfall,
    wrap_events,
)
from dispatch.cli.top import PAGES, TopScreen, plan_action, read_keys
from dispatch.devtools.demo import MIN_SECONDS, Demo, Event
from dispatch.errors import Outcome, RejectedError, ToolError
from dispatch.policy import DEFAULT_POLICY, DEFAULT_SOURCE, Policy, PolicyError
from dispatch.results import CallResult
from tests.helpers import admin_values
from tests.helpers.admin_values import A, B, C, call, circuit, instance, timed_out_call, tool
from tests.helpers.clock import advance
from tests.unit.devtools.demo_run import run_demo

READ_ONLY = {"read-only": True}
SHARED = "one topic shared by replicas: the broker distributes the requests"


def catalog(
    service: Mapping[str, Any] | None = None, tool: Mapping[str, Any] | None = None, kind: str = "non-persistent"
) -> Catalog:
    """One service and one tool, ``look``, with these keys of theirs."""
    return Catalog.of(
        [
            {"id": "s", "request-queue": f"{kind}://tg/request/s", "response-queue": f"{kind}://tg/response/s"}
            | dict(service or {})
        ],
        [
            {"type": "tool-service", "name": "look", "description": "Looks.", "service": "s", "arguments": []}
            | dict(tool or {})
        ],
    )


def planned(
    service: Mapping[str, Any] | None = None,
    tool: Mapping[str, Any] | None = None,
    user: Mapping[str, Any] | None = None,
    *,
    kind: str = "non-persistent",
    **declared: Any,
) -> ToolPlan:
    """The plan of ``look`` with these policies."""
    made = catalog(
        {"policy": service} if service is not None else None,
        ({"policy": tool} if tool is not None else {})
        | {key.replace("_", "-"): each for key, each in declared.items()},
        kind,
    )
    return plan_of(made, "look", user or {})


def row(plan: ToolPlan, key: str) -> Row:
    (found,) = [each for each in plan.rows if each.key == key]
    return found


# -- every value ----------------------------------------------------------------------------------------------------
def test_without_a_word_everything_is_a_default() -> None:
    plan = planned()
    assert {each.source for each in plan.rows} == {DEFAULT_SOURCE}
    assert plan.chosen == ()
    assert plan.guards == ("retry", "breaker", "bulkhead", "balancing", "outlier-detection")
    assert {each.guard for each in plan.rows} == set(GUARDS)
    # dispatch.cli.check.DEFAULTS names them
    shown = ("timeout", "retry.max-attempts", "bulkhead.max-concurrent-calls", "balancing.strategy")
    assert [row(plan, key).value for key in shown] == [30.0, 3, 64, "round-robin"]
    assert all(row(plan, key).value is None for key in ("rate-limit", "quota", "hedging", "slo"))


@pytest.mark.parametrize("declared", [{}, {"read_only": True}, {"idempotent": True}, {"destructive": True}])
@pytest.mark.parametrize(
    "policy",
    [
        {},
        {"retry": 1, "breaker": None},
        {"hedging": "p95", "bulkhead": None},
        {"hedging": 0.5, "rate-limit": "9/s", "retry": 2},
        {"user-rate-limit": "3/s", "shared-user-rate-limit": "5/s"},
    ],
)
async def test_the_guards_are_those_that_calls_meet(policy: dict[str, Any], declared: dict[str, bool]) -> None:
    plan = planned(policy, **declared)
    made = catalog({"policy": policy}, {key.replace("_", "-"): each for key, each in declared.items()})
    target = ToolResolver(made, DEFAULT_POLICY).tool("look")
    options = {"clock": asyncio.get_running_loop().time, "randomness": lambda: 0.5, "rates": create_rate_limiter}
    guards = ToolGuards(target.policy, repeatable=target.repeatable, **options)
    met = {"retry": guards.retrying, "hedging": guards.hedging, "breaker": guards.breaker, "bulkhead": guards.bulkhead}
    for name, guard in met.items():
        assert (name in plan.guards) == (guard is not None), name
    assert any(name.endswith("rate-limit") for name in plan.guards) == (guards.rates is not None)


# -- what has no effect ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("declared", "why"),
    [
        ({}, "off: neither read-only nor idempotent"),
        ({"destructive": True, "idempotent": True}, "off: declared destructive"),
        ({"read_only": True}, ""),
        ({"idempotent": True}, ""),
    ],
)
def test_an_inherited_hedge_is_off_where_nothing_may_run_twice(declared: dict[str, bool], why: str) -> None:
    plan = planned({"hedging": "p95"}, **declared)
    assert row(plan, "hedging") == Row("hedging", "hedging", "p95", SERVICE, why or None)
    assert ("hedging" in plan.guards) == (why == "")


def test_a_hedge_needs_another_instance() -> None:
    plan = planned({"hedging": "p95"}, kind="persistent", read_only=True)
    assert row(plan, "hedging").without_effect == "off: one topic, so no other instance is known"
    assert "hedging" not in plan.guards


@pytest.mark.parametrize(("declared", "on"), [({"read_only": True}, True), ({"idempotent": True}, False), ({}, False)])
def test_calls_are_shared_only_of_what_is_read_only(declared: dict[str, bool], on: bool) -> None:
    plan = planned({"single-flight": True}, **declared)
    assert ("single-flight" in plan.guards) == on
    assert row(plan, "single-flight").without_effect == (None if on else "off: not declared read-only")


ONCE, NOT_REPEATABLE = "'max-attempts' is 1: nothing is repeated", "neither read-only nor idempotent"
NO_WAIT, ONLY_LEAST = "'max-wait' is 0: no call waits", "only 'least-request' has it"
ONE_QUEUE = "the limits share one queue, with the weights of 'rate-limit'"
TWO_RATES = {"rate-limit": {"rate": "9/s", "max-wait": 0.5}, "user-rate-limit": "1/s"}
IMPATIENT = {"rate-limit": {"rate": "9/s", "max-wait": 0}}


@pytest.mark.parametrize(
    ("policy", "declared", "reasons"),
    [
        (
            {"retry": 1},
            {"read_only": True},
            {
                **dict.fromkeys(("retry.initial-backoff", "retry.max-backoff", "retry.retryable-errors"), ONCE),
                "retry.budget-ratio": "nothing is repeated or hedged",
                "retry.max-attempts": "",
            },
        ),
        (
            {"retry": 1, "hedging": "p95"},
            {"read_only": True},
            {"retry.initial-backoff": ONCE, "retry.budget-ratio": "", "hedging": ""},
        ),
        ({}, {}, {"retry.retryable-errors": f"the tool was executed and cannot be repeated: {NOT_REPEATABLE}"}),
        ({}, {"read_only": True}, {"retry.retryable-errors": ""}),
        ({}, {}, dict.fromkeys(("max-concurrent-calls", "max-wait", "priorities"), "")),
        ({"bulkhead": {"max-wait": 0}}, {}, {"max-concurrent-calls": "", "max-wait": "", "priorities": NO_WAIT}),
        ({}, {}, {"balancing.choice-count": ONLY_LEAST, "balancing.strategy": ""}),
        ({"balancing": "least-request"}, {}, {"balancing.choice-count": ""}),
        ({"balancing": "peak-ewma"}, {}, {"balancing.choice-count": ONLY_LEAST, "balancing.strategy": ""}),
        ({"user-rate-limit": "1/s"}, {}, {"user-rate-limit.weights": "", "user-rate-limit.max-wait": ""}),
        (
            TWO_RATES,
            {},
            {
                "user-rate-limit.weights": ONE_QUEUE,
                "user-rate-limit.max-wait": "that of 'rate-limit' is shorter",
                **dict.fromkeys(("rate-limit.weights", "rate-limit.max-wait"), ""),
                **dict.fromkeys(("user-rate-limit.rate", "user-rate-limit.burst"), ""),
            },
        ),
        (
            IMPATIENT,
            {},
            {
                "rate-limit.weights": "'rate-limit.max-wait' is 0: no call waits",
                **dict.fromkeys(("rate-limit.max-wait", "rate-limit.burst"), ""),
            },
        ),
        ({"slo": 0.99}, {}, {"slo.latency-share": "'latency' is null"}),
        ({"slo": {"latency": 2}}, {}, {"slo.latency-share": ""}),
    ],
)
def test_a_setting_that_another_switches_off_says_so(
    policy: dict[str, Any], declared: dict[str, bool], reasons: dict[str, str]
) -> None:
    plan = planned(policy, **declared)
    names = {name: name if "." in name or name == "hedging" else f"bulkhead.{name}" for name in reasons}
    assert {name: row(plan, key).without_effect or "" for name, key in names.items()} == reasons


def test_persistent_topics_have_nobody_to_ask_by_name() -> None:
    policy = {"policy": {"known-instances-only": True}}
    plan = plan_of(catalog(policy, READ_ONLY, kind="persistent"), "look")
    for key in (
        "known-instances-only",
        "balancing.strategy",
        "outlier-detection.consecutive-failures",
        "outlier-detection.panic-threshold",
    ):
        assert row(plan, key).without_effect, key
    found = row(plan, "known-instances-only").without_effect
    assert found == "no instance is called by name: the topics are persistent"
    assert row(plan, "balancing.choice-count").without_effect == SHARED
    assert "balancing" not in plan.guards
    assert plan.requests == (
        "one persistent topic shared by replicas: the broker distributes the requests, and gives a request to another when "
        "its instance dies"
    )
    assert "another" not in plan_of(catalog(kind="persistent"), "look").requests


# -- in words -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("declared", "policy", "words"),
    [
        (
            {},
            None,
            "up to 3 attempts, but a call without an idempotency key is repeated only where the tool was certainly not "
            "executed, because the tool is neither read-only nor idempotent",
        ),
        (
            {"destructive": True},
            None,
            "up to 3 attempts, but a call without an idempotency key is repeated only where the tool was certainly not "
            "executed, because the tool is declared destructive",
        ),
        ({"read_only": True}, None, "up to 3 attempts, after a timeout too: declared read-only"),
        (
            {"read_only": True, "idempotent": True},
            {"retry": 5},
            "up to 5 attempts, after a timeout too: declared read-only and idempotent",
        ),
        ({"idempotent": True}, {"retry": 1}, "none"),
    ],
)
def test_how_retries_are_allowed(declared: dict[str, bool], policy: dict[str, Any] | None, words: str) -> None:
    assert planned(policy, **declared).retries == words


def test_how_requests_are_balanced() -> None:
    def topics(name: str, kind: str = "non-persistent") -> dict[str, str]:
        return {"id": name, "request-queue": f"{kind}://tg/request/{name}"}

    listed = {"instances": [topics("a"), topics("b")]}
    stored = {"instances": [topics("a", "persistent"), topics("b", "persistent")]}
    stored_replies = {"response-queue": "persistent://tg/response/s"}

    def requests(service: dict[str, Any], tool: dict[str, Any] | None = None) -> str:
        return plan_of(catalog(service, tool), "look").requests

    found = requests({})
    assert found == f"round-robin over known instances, each by its name; if none is known after 1 s, on {SHARED}"
    assert requests({"policy": {"known-instances-only": True}}) == "round-robin over known instances by name only"
    assert requests(stored_replies) == SHARED
    assert requests(listed) == "round-robin over topics listed in the descriptor: a, b; known instances on them by name"
    assert requests(stored) == "round-robin over topics listed in the descriptor: a, b"
    assert requests(listed, {"policy": {"balancing": "least-request"}}).startswith("least-request over")
    assert requests(listed, {"policy": {"outlier-detection": {}}}).endswith(", in an instance pool of this tool")


def test_listed_topics_are_balanced_though_nobody_is_known_by_name() -> None:
    queues = [{"id": name, "request-queue": f"persistent://tg/request/{name}"} for name in ("a", "b")]
    policy = {"hedging": "p95"}
    two = plan_of(catalog({"instances": queues, "policy": policy}, READ_ONLY, "persistent"), "look")
    assert {"balancing", "outlier-detection", "hedging"} <= set(two.guards)
    one = plan_of(catalog({"instances": queues[:1], "policy": policy}, READ_ONLY, "persistent"), "look")
    assert not {"balancing", "outlier-detection", "hedging"} & set(one.guards)


@pytest.mark.parametrize(
    ("slo", "promise"),
    [
        (None, None),
        (0.99, "99 % of calls are good"),
        ({"latency": 1.28, "latency-share": 0.9}, "90 % of successes within 1.28 s"),
        (
            {"availability": 0.999, "latency": 2},
            "99.9 % of calls are good; 95 % of successes within 2 s, measured at 2.56 s",
        ),
    ],
)
def test_what_is_promised(slo: Any, promise: str | None) -> None:
    plan = planned({"slo": slo})
    assert plan.promise == promise
    assert "slo" not in plan.guards, "it guards nothing"


def test_a_quota_is_a_guard_that_is_on() -> None:
    assert "quota" in planned({"quota": "1000/day"}).guards
    assert "quota" not in planned().guards


# -- mistakes ------------------------------------------------------------------------------------------------------
def test_a_tool_that_is_not_there_is_told() -> None:
    with pytest.raises(RejectedError, match="no tool 'lok'"):
        plan_of(catalog(), "lok")


def test_a_users_policy_that_goes_with_no_tool_is_told() -> None:
    made = catalog({"policy": {"retry": {"max-backoff": 0.5}}})
    with pytest.raises(PolicyError, match=r"'retry.max-backoff': 0.5 is less than 'initial-backoff' \(1.0\)"):
        plan_of(made, "look", user={"retry": {"initial-backoff": 1.0}})
    with pytest.raises(PolicyError, match="did you mean 'timeout'"):
        plan_of(made, "look", user={"timeot": 1})


PARTS: dict[str, list[Any]] = {
    "retry": [
        1,
        2,
        3,
        {"max-attempts": 4},
        {"max-backoff": 3.0},
        {"initial-backoff": 0.1, "retryable-errors": ["busy"]},
        {},
    ],
    "breaker": [
        None,
        {},
        {"open-duration": 5.0},
        {"open-duration": 3.0},
        {"slow-call-duration": 1.0, "failure-rate": 0.4},
    ],
    "bulkhead": [None, 64, 8, {"max-wait": 0}, {"priorities": ["a", "b"]}],
    "rate-limit": [None, "100/s", "10/m", {"rate": "10/m", "burst": 2}, '{"rate": "3/s", "max-wait": 0.5}'],
    "user-rate-limit": [None, "5/s", {"rate": "1/s", "weights": {"ann": 2}}],
    "shared-user-rate-limit": [None, "20/s", {"rate": "20/s", "max-wait": 0.5}],
    "balancing": ["round-robin", "least-request", {"choice-count": 4}, {"strategy": "peak-ewma"}],
    "slo": [None, 0.99, {"latency": 2.0}, {"availability": 0.95, "latency-share": 0.9}],
    "outlier-detection": [
        {},
        {"consecutive-failures": None},
        {"consecutive-failures": 5},
        {"panic-threshold": 0, "base-ejection-time": 10.0},
    ],
}
PLAIN: dict[str, list[Any]] = {
    "timeout": [30.0, 10.0, 5.0],
    "attempt-timeout": [None, 2.0],
    "hedging": [None, "p95", "p90", 0.5],
    "single-flight": [False, True],
}
LAYERS = st.fixed_dictionaries({}, optional={key: st.sampled_from(values) for key, values in (PARTS | PLAIN).items()})


@given(LAYERS, LAYERS, LAYERS)
def test_the_rows_together_are_the_policy_that_calls_have(
    user: dict[str, Any], service: dict[str, Any], tool: dict[str, Any]
) -> None:
    """Written down as a policy and read again they make the one that a dispatcher works with."""
    made = catalog({"policy": service}, {"policy": tool, "read-only": True})
    plan = plan_of(made, "look", user=user)
    written: dict[str, Any] = {}
    for each in plan.rows:
        part, _, key = each.key.partition(".")
        if key:
            written.setdefault(part, {})[key] = each.value
        else:
            written[part] = each.value
    expected = ToolResolver(made, DEFAULT_POLICY.merged(user)).tool("look").policy
    read = DEFAULT_POLICY.merged(json.loads(json.dumps(written)))
    assert _without_bursts(read) == _without_bursts(expected)
    for key in ("rate_limit", "user_rate_limit", "shared_user_rate_limit"):
        rate = getattr(expected, key)
        assert rate is None or getattr(read, key).capacity == rate.capacity


@given(LAYERS, LAYERS, LAYERS)
def test_a_value_is_whose_word_was_last(user: dict[str, Any], service: dict[str, Any], tool: dict[str, Any]) -> None:
    """Found the other way round: a layer is the source of a value if another value written there would show."""
    plan = plan_of(catalog({"policy": service}, {"policy": tool, "read-only": True}), "look", user=user)
    for each in plan.rows:
        assert each.source == _whose(each.key, ((TOOL, tool), (SERVICE, service), (USER, user))), each.key


def _whose(wanted: str, layers: tuple[tuple[str, Mapping[str, Any]], ...]) -> str:
    part, _, key = wanted.partition(".")
    short = {
        "retry": "max-attempts",
        "bulkhead": "max-concurrent-calls",
        "balancing": "strategy",
        "slo": "availability",
    }
    for source, layer in layers:  # the last word first
        if part not in layer:
            continue
        raw = layer[part]
        if not key:  # a plain value, or a part that is off
            return source
        if part.endswith("rate-limit"):
            if isinstance(raw, str) and raw.startswith("{"):
                raw = json.loads(raw)
            names = raw if isinstance(raw, Mapping) else ("rate",)
            return source if key in names else DEFAULT_SOURCE
        if raw is None:
            return DEFAULT_SOURCE  # it begins with the defaults again
        if key in (raw if isinstance(raw, Mapping) else (short[part],)):
            return source
    return DEFAULT_SOURCE


def _without_bursts(policy: Policy) -> Policy:
    changes = {
        key: msgspec.structs.replace(rate, burst=None)
        for key in ("rate_limit", "user_rate_limit", "shared_user_rate_limit")
        if (rate := getattr(policy, key)) is not None
    }
    return msgspec.structs.replace(policy, **changes)


def drawn_screen(renderable: Any, width: int) -> str:
    file = io.StringIO()
    Console(file=file, width=width).print(renderable)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def drawn(demo: Demo, width: int = 120, height: int = 40) -> str:
    return drawn_screen(live_view(demo, width, height), width)


async def test_rows_lines_and_the_live_view_show_the_counts_of_the_moment() -> None:
    demo = Demo("memory://view", 10)
    board = demo.board
    for _ in range(3):
        board.record_start("tell-joke")
    board.record_end("tell-joke", CallResult("tell-joke", Outcome.SUCCESS, "ha\n[red]ha[/red]", duration=0.0125))
    board.record_end("tell-joke", CallResult("tell-joke", Outcome.TOOL_ERROR, error=ToolError("no-joke", "…")))
    row = next(line for line in drawn(demo).splitlines() if line.startswith("tell-joke"))
    assert row.split() == ["tell-joke", "3", "1", "1", "12.5", "12.5", "✗", "no-joke"]
    assert plain_line(demo).split() == ["0%", "3", "calls", "1", "ok", "1", "errors", "1", "in", "flight", "connecting"]
    assert "tell-joke" in drawn(demo)
    assert "connecting" in drawn(demo)


async def test_an_answers_text_is_never_taken_for_markup() -> None:
    demo = Demo("memory://view", 10)
    demo.board.record_start("tell-joke")
    demo.board.record_end("tell-joke", CallResult("tell-joke", Outcome.SUCCESS, "[bold]ha", duration=0.01))
    assert "[bold]ha" in drawn(demo)


@pytest.mark.costly
async def test_view_shows_every_scenario_and_always_fits() -> None:
    demo = Demo("memory://view", MIN_SECONDS)
    running = asyncio.ensure_future(demo.run())
    views: dict[tuple[int, int], list[str]] = {(80, 24): [], (120, 40): []}
    while not running.done():
        await advance(0.1)
        for size, shown in views.items():
            shown.append(drawn(demo, *size))
    await running
    for size, shown in views.items():
        assert_shows_everything(shown, *size)


def assert_shows_everything(views: list[str], width: int, height: int) -> None:
    for view in views:
        lines = view.splitlines()
        assert len(lines) < height, "the cursor stands below it"
        assert max(map(len, lines)) <= width
    screens = "\n".join(views)
    for text in (
        "Scenario 2 of 4: A slow instance",
        "translate-2 ejected 0.",
        "translate-2 warming",
        "exchange-rate open 0.",
        "exchange-rate half-open",
        "11 others     closed",
        "noisy",
        "refused",
        "Shortened: ejected 0.5 s (default 30), slow start 0.5 s (30), open 0.6 s (5)",
        "translate-2: up → ejected",
    ):
        assert text in screens, text
    assert "100%" in views[-1]
    assert bool(re.search(r"and \d+ more", screens)) == (height == 24), "tools are left out where they do not fit"


async def test_a_tiny_terminal_still_has_the_tools_called_last() -> None:
    demo = Demo("memory://view", 10)
    for name in ("one", "two", "three", "four", "five", "two"):
        demo.board.record_start(name)
    view = drawn(demo, 80, 8)
    assert len(view.splitlines()) < 8
    assert [name for name in ("one", "two", "three", "four", "five") if f"\n{name} " in view] == ["two", "five"]
    assert "and 3 more" in view


def test_events_are_shown_with_their_time_and_wrapped() -> None:
    events = [Event(1.25, "one two three"), Event(12.0, "four")]
    assert wrap_events(map(format_event, events), 16) == ["  1.2 s  one two", "         three", " 12.0 s  four"]


@pytest.mark.costly
def test_it_tells_how_calls_ended_what_guards_did_and_what_to_do_next(capsys: pytest.CaptureFixture[str]) -> None:
    summary = run_demo()[1]
    show_summary(summary)
    out = capsys.readouterr().out
    flat = " ".join(out.split())
    for scenario in summary.scenarios:
        assert " ".join(scenario.describe_result().split()) in flat
    assert summary.note in flat
    for outcome, count in summary.board.outcomes.items():
        assert f"{outcome} {count:,}" in flat
    for command, why in NEXT:
        assert f"{command} {why}" in flat
    assert max(len(line) for line in out.splitlines() if "last result" not in line) <= 130


class Process:
    """An admin endpoint that answers from ``values`` and remembers actions."""

    url = A

    def __init__(self) -> None:
        self.posted: list[tuple[str, Mapping[str, Any]]] = []

    async def get(self, path: str, kind: Any) -> Any:
        if path == "/api/calls/8124":
            return timed_out_call()
        raise AdminError(f"404 to {path}", 404)

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        self.posted.append((path, body))
        return {"event": "action", "until": admin_values.AT + body["for"] if "for" in body else None}


class Processes:
    """A fleet of one process."""

    def __init__(self) -> None:
        self.process = Process()
        self.endpoints = {A: self.process}
        self.read: list[Any] = []
        self.tools: list[dict[str, Any]] = []
        self.kinds: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def fetch(self, tables: Mapping[str, str]) -> dict[str, Any]:
        await self.gate.wait()
        self.read.append(dict(tables))
        values = admin_values.values()
        values["tools"] = self.tools or values["tools"]
        if self.kinds:
            values["processes"] = [admin_values.process(A, kind=each) for each in self.kinds]
        for name in ("tools", "instances", "circuits"):
            values[name] = merge(name, values[name])
        return {name: values[name] for name in ("processes", *tables)}

    async def ask_each(self, path: str, kind: Any) -> Answers:
        details = {"description": "Price of a product", "policy": [{"key": "timeout", "value": 5.0, "source": "tool"}]}
        lists = {"instance_list": [instance("shop-1")], "circuits": [circuit("price", "open", retry_after=3.2)]}
        history = {"history": {"seconds": 5, "calls": [8, 4, 0, 1], "failed": [0, 4, 0, 0]}}
        return Answers([(A, {**tool("price"), **details, **lists, **history})], {})


async def top() -> tuple[TopScreen, Processes]:
    fleet = Processes()
    screen = TopScreen(fleet, "alice")  # type: ignore[arg-type] # as far as the screen uses it
    await screen.refresh()
    return screen, fleet


async def press(screen: TopScreen, *keys: str) -> str:
    for key in keys:
        await screen.press(key)
    return drawn_screen(screen.render(100, 30), 100)


def below_head(screen: str) -> str:
    """Return a screen without its first line, which has the time of day."""
    return screen.partition("\n")[2]


TOOLS_80 = """\
tool      calls calls/s failed % failed running  p95 ms circuit   up
price     8,123    12.5    212    26.0%       1 1,200.0 open      2 of 3
find      8,123     3.0      2     0.1%       1    40.0 closed    3 of 3
translate 8,123    12.5      0     0.0%       1    40.0 -         -

instance state          running  circuit of state       user  calls refused
shop-2   ejected 12.3 s       2  price      open 3.2 s  bob   4,000     912
shop-1   up                   2  2 others   closed      alice   321       0
words-1  up                   0"""
TOOLS_140 = """\
tool       service  calls  calls/s  failed  % failed  refused  running  queued  p50 ms   p95 ms  circuit    up
price      shop     8,123     12.5     212     26.0%        5        1       0    12.0  1,200.0  open       2 of 3
find       shop     8,123      3.0       2      0.1%        5        1       0    12.0     40.0  closed     3 of 3
translate  words    8,123     12.5       0      0.0%        0        1       0    12.0     40.0  -          -"""
WATERFALL_80 = """\
call 8124  price 1.4.0 of shop  timeout after 2,000.0 ms
                           0           2,000.0 ms
wait for a place           ░                          100.0 ms
attempt 1 shop-2            ███████████             1,000.0 ms  instance-lost
attempt 2 shop-1                        █████████     800.0 ms  timeout  (retry)"""


@pytest.mark.parametrize(("width", "expected"), [(80, TOOLS_80), (140, TOOLS_140)], ids=["80", "140"])
def test_tools_in_trouble_come_first_with_instances_circuits_and_users_below(width: int, expected: str) -> None:
    assert expected in drawn_screen(render_screen(admin_values.values(), View(), width, 40), width)


def test_panels_that_do_not_fit_side_by_side_are_fewer_and_their_figures_whole() -> None:
    held = [instance("shop-1", "ejected", is_held=True, seconds_left=299.0, in_flight=77)]
    values = {**admin_values.values(), "instances": held, "users": [admin_values.user("u" * 100, refused=912)]}
    assert "ejected 299.0 s by hand      77" in drawn_screen(render_screen(values, View(), 80, 40), 80)
    assert "912" in drawn_screen(render_screen(values, View(), 140, 40), 140)


async def test_without_a_dispatcher_the_instances_of_services_are_shown_also_if_a_process_is_silent() -> None:
    fleet = Processes()
    fleet.kinds = ["service", "process"]  # of one that has never answered
    screen = TopScreen(fleet, "alice")  # type: ignore[arg-type] # as far as the screen uses it
    await screen.start()
    assert "latency ms" in drawn_screen(screen.render(100, 30), 100)


@pytest.mark.parametrize("width", [80, 140])
@pytest.mark.parametrize("page", PAGES)
async def test_every_table_fits_and_has_its_rows(page: str, width: int) -> None:
    screen, _ = await top()
    await screen.press(str(PAGES.index(page) + 1))
    lines = drawn_screen(screen.render(width, 24), width).splitlines()
    assert len(lines) < 24
    assert max(map(len, lines)) <= width
    first = {"tools": "price", "instances": "shop-2", "circuits": "price", "users": "alice", "sessions": "shop-1"}
    first |= {"calls": "16:20:00.000 8124 timeout", "processes": "shop-2"}
    rows = lines[lines.index(next(line for line in lines if line.startswith("1 tools"))) + 2 :]
    assert " ".join(rows[0].split()).startswith(first[page].replace("16:20:00.000", rows[0].split()[0]))
    assert any("shop-2 is unreachable" in line for line in lines)


def test_a_call_is_a_waterfall_of_waits_and_attempts() -> None:
    lines = [drawn_screen(line, 80) for line in waterfall(timed_out_call(), 80)]
    assert "\n".join([lines[0], *lines[3:]]) == WATERFALL_80
    assert "user alice · the tool may have run" in lines[1]
    assert lines[2].startswith("Tool 'price' did not reply within 2 s.")
    refused = call("1", outcome="rejected", ran="no", attempts=0, waits=[], trail=[])
    assert drawn_screen(waterfall(refused, 80)[-1], 80) == "Nothing was sent."


def test_a_call_is_one_line_without_control_characters() -> None:
    line = call_line(call("8124", "evil\x1b[2J\n", "timeout", ran="maybe", attempts=2, error="deadline", user="")).plain
    expected = r"8124 timeout 12.3 ms evil\x1b[2J - shop-1 deadline 2 attempts may have run"
    assert line.split()[1:] == expected.split()
    assert line.isprintable()


def test_lines_of_calls_have_their_columns_at_the_same_places() -> None:
    lines = [call_line(call("8124", outcome=str(outcome))).plain for outcome in Outcome]
    assert len({(line.index(" ms "), line.index("alice")) for line in lines}) == 1


def test_events_are_sentences() -> None:
    ejected, opened = admin_values.values()["events"]
    assert event_line(ejected)[9:] == "instance shop-2 of shop ejected: 5 failures"
    assert event_line(opened)[9:] == "circuit of price: closed → open (failure rate)"
    action = {"user": "alice", "action": "open", "target": "circuit price", "reason": "bad"}
    assert event_line({"event": "action", "at": 0.0, **action})[9:] == "alice: open circuit price (bad)"
    source = {"event": "source", "at": 0.0, "source": "folder", "old": "", "new": "failed", "problem": "no such folder"}
    assert event_line(source)[9:] == "source folder: new → failed no such folder"
    counts = {"added_count": 2, "changed_count": 1, "removed_count": 0}
    catalog = {"event": "catalog", "at": 0.0, "source": "folder", "tools": 12, "problem": "", **counts}
    assert event_line(catalog)[9:].rstrip() == "catalogue: 12 tools, 2 added, 1 changed, 0 removed by folder"
    assert event_line({"event": "log-level", "at": 0.0, "level": "DEBUG", "url": A})[9:] == "log-level: level DEBUG"


def test_rows_of_several_processes_are_merged_into_the_worst() -> None:
    at_b = tool("price", url=B, rate=1.0, failure_rate=0.4, circuit="open", p95=2.0, instances_up=1)
    (price,) = merge("tools", [tool("price", rate=3.0, failure_rate=0.0), at_b])
    assert (price["calls"], price["rate"], price["failure_rate"], price["p95"]) == (16_246, 4.0, 0.1, 2.0)
    assert (price["circuit"], price["seen"], price["of"], price["instances_up"]) == ("open", 1, 2, 1)
    own = instance("shop-1", kind="own", url=C, in_flight=9, queued=4, requests=77)
    (shop,) = merge("instances", [own, instance("shop-1"), instance("shop-1", "ejected", url=B, seconds_left=3.0)])
    assert (shop["in_flight"], shop["queued"], shop["requests"], shop["state"]) == (4, 4, 77, "ejected")
    assert (shop["urls"], shop["own_url"], shop["seen"], shop["of"]) == ([A, B], C, 1, 2)
    text = "ejected 3.0 s at 1 of 2"
    assert text in drawn_screen(render_screen({"instances": [shop]}, View("instances"), 100, 9), 100)
    (renamed,) = merge("instances", [own | {"service": "shop-topic"}, instance("shop-1")])
    assert (renamed["service"], renamed["requests"], renamed["own_url"]) == ("shop", 77, C)
    two = [instance("shop-1"), own | {"service": "one"}, own | {"service": "two"}]  # no one knows which of them it is
    assert len(merge("instances", two)) == 3
    (draining,) = merge("instances", [instance("shop-1"), instance("shop-1", "draining", kind="own", url=C)])
    assert draining["state"] == "draining"


def test_rows_are_sorted_and_filtered() -> None:
    values = admin_values.values()

    def names(**choice: Any) -> list[str]:
        return [str(row.get("name") or row.get("id")) for row in select_rows(values, View(**choice))]

    assert names() == ["price", "find", "translate"]
    assert names(sort="name") == ["find", "price", "translate"]
    assert names(sort="failed") == ["price", "find", "translate"]
    assert names(sort="rate", is_reversed=True) == ["find", "translate", "price"]
    assert names(pattern="WORDS") == ["translate"]
    assert names(table="calls", failed_only=True) == ["8124"]


def test_a_tall_table_is_cut_around_the_selected_row() -> None:
    rows = {"tools": [{"name": f"tool-{number:03}", "calls": number} for number in range(200)]}
    text = drawn_screen(render_screen(rows, View(), 80, 24, selected=150), 80)
    assert "tool-150" in text
    assert "tool-000" not in text
    assert "more" in text
    assert len(text.splitlines()) < 24


async def test_keys_open_a_tool_a_call_and_the_calls_of_an_instance() -> None:
    screen, fleet = await top()
    text = await press(screen, "down", "up", "enter")
    for part in ("price 1.4.0 of shop  Price of a product", "█▅ ▂", "policy: timeout 5.0 (tool)", "open 3.2 s", "8124"):
        assert part in text, part
    assert fleet.read[-1] == {"calls": "/api/calls?limit=100&tool=price"}
    assert "attempt 1 shop-2" in await press(screen, "enter")
    assert "policy: timeout" in await press(screen, "escape")
    assert "1 tools" in await press(screen, "escape")
    text = await press(screen, "2", "enter")
    assert "filter 'shop-2'" in text
    assert "8124" in text
    assert "8123" not in text
    assert "an update" not in text
    assert "another table" in await press(screen, "?")
    assert "another table" not in await press(screen, "x")
    assert fleet.process.posted == []


async def test_esc_shows_the_page_before_at_once_and_values_read_meanwhile_do_not_replace_its_own() -> None:
    screen, fleet = await top()
    before = below_head(await press(screen, "down"))
    await press(screen, "enter")
    fleet.gate.clear()  # the processes do not answer any more
    reading = asyncio.create_task(screen.refresh())
    await asyncio.sleep(0)
    assert below_head(await press(screen, "escape")) == before
    fleet.gate.set()
    await reading
    assert below_head(await press(screen)) == before
    assert "Open the circuit of 'find'" in await press(screen, "o")


@pytest.mark.parametrize(("key", "row"), [("2", "shop-2"), ("4", "alice")])
async def test_esc_leads_back_to_the_instance_or_user_whose_calls_were_opened(key: str, row: str) -> None:
    screen, _ = await top()
    before = below_head(await press(screen, key))
    assert f"filter '{row}'" in await press(screen, "enter")
    assert below_head(await press(screen, "escape")) == before


async def test_the_selection_follows_its_row() -> None:
    screen, fleet = await top()
    assert "Open the circuit of 'price'" in await press(screen, "o")
    fleet.tools = [tool("find", circuit="forced-open", failure_rate=0.9), *admin_values.values()["tools"][1:]]
    await screen.refresh()
    assert "Open the circuit of 'price'" in await press(screen, "escape", "o")
    assert "Open the circuit of 'price'" in await press(screen, "escape", "S", "s", "o")
    assert "Open the circuit of 'translate'" in await press(screen, "escape", "end", "o")


async def test_an_action_needs_a_reason_and_can_be_given_up() -> None:
    screen, fleet = await top()
    text = await press(screen, "o")
    assert "Open the circuit of 'price' in 1 process for 5 min (tab: another)?" in text
    await press(screen, "enter", "escape")
    assert fleet.process.posted == []
    text = await press(screen, "o", "tab", *"bad prices!", "backspace", "enter")
    assert "Done: open the circuit of 'price', until" in text
    body = {"action": "open", "version": "1.4.0", "user": "alice", "reason": "bad prices", "for": 1800}
    assert fleet.process.posted == [("/api/circuits/price", body)]
    text = await press(screen, "2", "d")
    assert "Drain needs the admin endpoint of the instance's own process" in text


def test_actions_go_to_the_processes_that_can_do_them() -> None:
    (shop,) = merge("instances", [instance("shop-1"), instance("shop-1", url=B), instance("shop-1", kind="own", url=C)])
    planned = {key: plan_action(key, "instances", shop) for key in "eado"}
    assert planned.pop("o") is None
    assert {key: (each.urls, each.body["action"], bool(each.durations)) for key, each in planned.items()} == {  # type: ignore[union-attr] # actions
        "e": ([A, B], "eject", True),
        "a": ([A, B], "admit", False),
        "d": ([C], "drain", False),
    }
    own = instance("shop-1", kind="own", url=C)
    (renamed,) = merge("instances", [instance("shop-1"), own | {"service": "shop-topic"}])
    services = {key: plan_action(key, "instances", renamed).body["service"] for key in "ed"}  # type: ignore[union-attr] # actions
    assert services == {"e": "shop", "d": "shop-topic"}  # each as the process that acts knows it
    (own,) = merge("instances", [own])
    assert plan_action("e", "instances", own) == "No dispatcher on this screen calls this instance."


async def test_a_refused_action_says_why() -> None:
    screen, fleet = await top()

    async def refuse(path: str, body: Mapping[str, Any]) -> Any:
        raise AdminError(f"{A} answers 403 to POST {path}: the token may only read.", 403)

    fleet.process.post = refuse  # type: ignore[method-assign] # refuses
    assert "answers 403 to POST /api/circuits/price" in await press(screen, "c", "x", "enter")


async def test_an_opened_tool_is_acted_on_where_it_is_known_and_a_refusal_says_where_it_was_done() -> None:
    screen, fleet = await top()
    refusing = Process()

    async def refuse(path: str, body: Mapping[str, Any]) -> Any:
        raise AdminError(f"{B} answers 403 to POST {path}: the token may only read.", 403)

    refusing.post = refuse  # type: ignore[method-assign] # refuses
    fleet.endpoints = {A: fleet.process, B: refusing, C: Process()}
    fleet.tools = [tool("price"), tool("price", url=B)]
    await screen.refresh()
    text = " ".join((await press(screen, "enter", "x", *"bad", "enter")).split())
    assert "Done in 1 of 2 processes: disable the circuit of 'price', until" in text
    assert f"{B} answers 403" in text
    assert fleet.process.posted
    assert not fleet.endpoints[C].posted


@pytest.mark.parametrize("height", [12, 16, 24, 30])
@pytest.mark.parametrize("keys", ["o", "enter o", "/", "enter"])
async def test_the_prompt_of_an_action_is_seen_on_every_screen(keys: str, height: int) -> None:
    screen, fleet = await top()
    fleet.tools = [tool(f"price-{number}") for number in range(40)]
    await screen.refresh()
    await press(screen, *keys.split(), *("r" * 100 if keys != "enter" else ""))
    lines = drawn_screen(screen.render(60, height), 60).splitlines()
    assert len(lines) < height
    assert {"o": "r▏", "/": "clear", "r": "q quit"}[keys[-1]] in lines[-1]


def test_keys_of_a_terminal() -> None:
    keys = ["q", "up", "down", "page up", "enter", "tab", "backspace", "ä", "escape"]
    assert read_keys("q\x1b[A\x1bOB\x1b[5~\r\t\x7fä\x1b") == keys
    assert read_keys("\x1b[1;5C\x00\x1b[6~") == ["page down"]


def test_sparkline_is_relative_to_the_greatest() -> None:
    assert sparkline([0, 1, 8, 4]) == " ▂█▅"
    assert sparkline([0, 0]) == ""
