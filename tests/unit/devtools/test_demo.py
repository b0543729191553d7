"""Services with injected faults, as their callers see them.
Runs of the demo, on virtual time: the same counts every time, and nothing left.
Counting.
The demonstration's services, as their callers see them.
The summary of a run.
Times of the demo.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from typing import Any

import pytest

from dispatch import TransportError
from dispatch.devtools.demo import (
    DEFAULT_SECONDS,
    EXPECTED_OUTCOMES,
    MIN_SECONDS,
    CustomRag,
    Demo,
    Scoreboard,
    Summary,
    TimeScale,
    demo_catalog,
)
from dispatch.errors import Outcome
from dispatch.policy import DEFAULT_POLICY
from tests.helpers.clock import advance, run
from tests.unit.devtools.demo_run import run_demo


@pytest.mark.costly
def test_everything_occurs_as_planned() -> None:
    demo, summary = run_demo()
    assert_planned(demo, summary, MIN_SECONDS)
    assert summary.seconds < MIN_SECONDS + 6


def assert_planned(demo: Demo, summary: Summary, seconds: float) -> None:
    assert summary.deviations == []
    outcomes = summary.as_dict()["scenarios"][0]["outcomes"]
    assert {outcome: outcomes[outcome] for outcome in EXPECTED_OUTCOMES} == EXPECTED_OUTCOMES
    assert set(Outcome) == {Outcome.SUCCESS, *EXPECTED_OUTCOMES}
    assert demo.board.outcomes[Outcome.SUCCESS] > 20 * seconds
    assert (summary.pending, demo.board.in_flight) == (0, 0)


@pytest.mark.costly
def test_each_outcome_has_the_text_that_a_model_would_read() -> None:
    examples = run_demo()[1].board.examples
    assert "Call 'tell-joke' or" in examples[Outcome.REJECTED].message
    assert examples[Outcome.TOOL_ERROR].type == "division-by-zero"
    assert " s or later" in examples[Outcome.THROTTLED].message
    assert "within 0.8 s" in examples[Outcome.TIMEOUT].message
    assert examples[Outcome.TRANSPORT].type == "malformed-reply"
    assert "must be an object" in examples[Outcome.INVALID_ARGUMENTS].message
    assert Outcome.SUCCESS not in examples


@pytest.mark.costly
def test_two_runs_are_alike() -> None:
    first, again = run_demo()[1], run(Demo("memory://", MIN_SECONDS).run)
    for summary in (first, again):
        assert summary.deviations == []
    one, other = ({name: score.calls for name, score in each.board.tools.items()} for each in (first, again))
    assert one == other
    assert [each.describe_result() for each in first.scenarios] == [each.describe_result() for each in again.scenarios]


@pytest.mark.costly
async def test_progress_goes_from_0_to_1_and_the_scenarios_run_in_order() -> None:
    demo = Demo("memory://", 20)
    assert (demo.progress, demo.scenario_number, demo.events) == (0.0, 0, [])
    began = asyncio.get_running_loop().time()
    running = asyncio.ensure_future(demo.run())
    progress, numbers = [0.0], [0]
    while not running.done():
        await advance(0.5)
        progress.append(demo.progress)
        numbers.append(demo.scenario_number)
    assert_planned(demo, await running, 20)
    assert asyncio.get_running_loop().time() - began < 20 + 6
    assert progress == sorted(progress)
    assert (progress[-2] > 0.9, progress[-1]) == (True, 1.0)
    assert sorted(set(numbers)) == list(range(demo.scenario_count + 1))
    assert numbers == sorted(numbers)
    assert [event.at for event in demo.events] == sorted(event.at for event in demo.events)


@pytest.mark.costly
async def test_cancelled_at_any_moment_it_leaves_nothing() -> None:
    for seconds in (0.001, 1.0, 3.0, 4.2, 5.5, 7.0):
        demo = Demo("memory://", MIN_SECONDS)
        running = asyncio.ensure_future(demo.run())
        await advance(seconds)
        assert not running.done()
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        assert running.cancelled()
        assert demo.board.in_flight == 0
        assert demo.guards == demo.guards, "what it was like then can still be looked at"


async def test_a_broker_out_of_reach_is_an_error_at_once() -> None:
    with pytest.raises(TransportError, match="not a broker address"):
        await Demo("nowhere", MIN_SECONDS).run()


async def test_one_service_answers_from_the_collection_that_the_tools_config_names() -> None:
    rag = CustomRag(random.Random(1))
    answers: dict[str, Any] = {}
    for collection in ("products", "customers"):
        answers[collection] = await rag.invoke(
            {"collection": collection}, {"question": "Any complaint about a kettle?"}
        )
    assert "boils" in answers["products"]["answer"]
    assert "parcels" in answers["customers"]["answer"]


def test_runs_never_meet_on_a_broker() -> None:
    one, other = demo_catalog("demo-1", TimeScale(20)), demo_catalog("demo-2", TimeScale(20))
    topics = [{service.request_queue for service in catalog.services.values()} for catalog in (one, other)]
    assert topics[0].isdisjoint(topics[1])


def test_the_summary_as_plain_values() -> None:
    summary = run_demo()[1].as_dict()
    assert summary["searches"] > 10
    assert json.loads(json.dumps(summary)) == summary
    assert summary["outcomes"]["rejected"]["example"]["tool"] == "tell-jokes"
    assert "example" not in summary["outcomes"]["success"]
    assert summary["tools"]["weather"] == {
        "calls": 2,
        "ok": 0,
        "errors": 2,
        "p50_ms": None,
        "p95_ms": None,
        "chunks": 0,
        "first_chunk_p50_ms": None,
    }
    outcomes, instance, circuit, noisy = summary["scenarios"]
    assert outcomes["outcomes"]["throttled"] == 2
    states = {f"translate-{number}": ["up"] for number in (1, 2, 3)}
    assert instance["instances"] == {**states, "translate-2": ["up", "ejected", "warming", "up"]}
    assert circuit["states"] == ["closed", "open", "half-open", "closed"]
    assert list(noisy["users"]) == ["noisy", "nora", "otto", "petra"]


def test_pending_requests_are_a_deviation() -> None:
    summary = Summary("memory://", 1.0, "", Scoreboard(), (), pending=2, replies={})
    assert summary.deviations == ["no call succeeded", "2 requests are still pending"]


def test_the_policies_say_what_the_screen_says() -> None:
    time_scale = TimeScale(DEFAULT_SECONDS)
    catalog = demo_catalog("demo-1", time_scale)
    outliers = DEFAULT_POLICY.merged(catalog.service("translate-service").policy).outlier_detection
    breaker = DEFAULT_POLICY.merged(catalog.service("rates-service").policy).breaker
    assert (outliers.base_ejection_time, outliers.slow_start_window, breaker.open_duration) == (2.0, 2.0, 2.4)
    assert time_scale.note == ("Shortened: ejected 2 s (default 30), slow start 2 s (30), open 2.4 s (5)")
