"""Tools that this process executes: the same results and errors as at an instance.
Cancellation of tools that this process executes: no call outlives its deadline, its caller or its dispatcher.
Streams of tools that this process executes.
Calls while no instance can be reached: they wait for one, or go to the shared topic.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from typing import Any

import pytest

import dispatch
import dispatch.testing
from dispatch import Bulkhead, Dispatcher, Policy
from dispatch.calls.local import FailedCallError, LocalCall, LocalResult, RefusedCallError
from dispatch.errors import CallTimeoutError, ErrorType, Outcome, RejectedError
from dispatch.results import ResultContent
from dispatch.routing.instance import DISCOVERY_S, GONE_S, HELLO_WAIT_S, MAX_UNANSWERED
from dispatch.transports.memory import MemoryTransport
from tests.helpers.clock import advance, idle, start_task
from tests.helpers.dispatcher_and_service import BROKER, Peer, catalog, dispatching, serving, topics_of
from tests.helpers.faults import FaultPlan, FaultyTransport
from tests.helpers.local_source import Local, chunks, connect


async def test_a_result_and_its_context() -> None:
    seen: list[LocalCall] = []

    async def execute(call: LocalCall) -> str:
        seen.append(call)
        call.arguments["n"] = 2  # the caller's own arguments do not change
        return "done"

    given = {"n": 1}
    async with connect(execute) as dispatcher:
        result = await dispatcher.execute("run", given, user="alice", timeout=5, context="here")
    assert (result.text, result.attempts, given) == ("done", 1, {"n": 1})
    context = seen[0].context
    assert (context.tool, context.user, context.attempt, context.context) == ("run", "alice", 1, "here")
    assert context.call_id == result.request_id
    assert 4 < context.remaining <= 5


async def test_the_error_of_a_nested_call_does_not_repeat_the_function() -> None:
    count = 0

    async def execute(call: LocalCall) -> str:
        nonlocal count
        count += 1
        raise dispatch.TransportError(ErrorType.SEND_TIMEOUT, "not sent", may_have_run=False)

    async with connect(execute) as dispatcher:
        result = await dispatcher.execute("run")
    assert isinstance(result.error, dispatch.ToolError)
    assert count == 1


async def test_a_refusal_is_no_execution() -> None:
    async def execute(call: LocalCall) -> str:
        raise RefusedCallError(dispatch.InvalidArgumentsError(ErrorType.INVALID_ARGUMENTS, "n must be a number."))

    async with connect(execute) as dispatcher:
        result = await dispatcher.execute("run")
    assert isinstance(result.error, dispatch.InvalidArgumentsError)
    assert result.attempts == 0


async def test_a_failed_connection_is_a_transport_error_and_nothing_is_repeated() -> None:
    count = 0

    async def execute(call: LocalCall) -> str:
        nonlocal count
        count += 1
        raise FailedCallError(dispatch.TransportError(ErrorType.INSTANCE_LOST, "The server ended."))

    async with connect(execute) as dispatcher:
        result = await dispatcher.execute("run")
        with pytest.raises(dispatch.TransportError, match="server ended"):
            [each async for each in dispatcher.stream("run")]
    assert isinstance(result.error, dispatch.TransportError)
    assert (result.error.may_have_run, result.error.retryable, result.attempts, count) == (True, False, 1, 2)


async def test_a_failed_connection_of_a_repeatable_tool_is_retried() -> None:
    count = 0

    async def execute(call: LocalCall) -> str:
        nonlocal count
        count += 1
        if count == 1:
            raise FailedCallError(dispatch.TransportError(ErrorType.INSTANCE_LOST, "The server ended."))
        return "done"

    source = Local(execute)
    source.keys = {"read-only": True}
    async with dispatch.connect("memory://", [source]) as dispatcher:
        assert (await dispatcher.execute("run", timeout=5)).text == "done"
    assert count == 2


async def test_a_result_with_content() -> None:
    blocks = ({"type": "text", "text": "a cat"}, {"type": "image", "data": "AAAA", "mimeType": "image/png"})

    async def execute(call: LocalCall) -> LocalResult:
        return LocalResult("a cat", ResultContent(blocks, {"animal": "cat"}), "server-1")

    async with connect(execute) as dispatcher:
        result = await dispatcher.execute("run")
        assert [each async for each in dispatcher.stream("run")] == ["a cat"]
    assert (result.text, result.content, result.structured_content) == ("a cat", blocks, {"animal": "cat"})
    assert result.instance == "server-1"


async def test_content_beyond_the_limit_is_refused() -> None:
    async def execute(call: LocalCall) -> LocalResult:
        return LocalResult("", ResultContent(({"type": "image", "data": "A" * 2_000},)))

    async with connect(execute, **{"max-response-bytes": 1_000}) as dispatcher:
        result = await dispatcher.execute("run")
    assert result.error.type == ErrorType.RESPONSE_LIMIT_EXCEEDED


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()])
async def test_nothing_that_a_tool_raises_ends_the_loop(error: BaseException) -> None:
    async def execute(call: LocalCall) -> str:
        raise error

    async with connect(execute) as dispatcher:
        result = await dispatcher.execute("run")
    assert isinstance(result.error, dispatch.ToolError)


async def test_listeners_receive_the_ends_of_calls() -> None:
    async def execute(call: LocalCall) -> str:
        return "done"

    ended = []
    async with connect(execute) as dispatcher:
        remove = dispatcher.on_call(ended.append)
        dispatcher.on_call(lambda call: 1 / 0)  # is logged, and affects nothing
        await dispatcher.execute("run", user="alice", by_model=True)
        remove()
        await dispatcher.call("run")
    found = [(each.tool, each.user, each.by_model, each.result.text) for each in ended]
    assert found == [("run", "alice", True, "done")]


async def test_a_tool_that_ignores_its_cancellation_delays_no_caller_and_keeps_its_place() -> None:
    release = asyncio.Event()

    async def execute(call: LocalCall) -> str:
        while not release.is_set():
            with suppress(asyncio.CancelledError):
                await release.wait()
        return "late"

    policy = {"bulkhead": {"max-concurrent-calls": 1, "max-wait": 0.01}, "retry": None}
    async with connect(execute, **policy) as dispatcher:
        assert isinstance((await dispatcher.execute("run", timeout=0.05)).error, dispatch.CallTimeoutError)
        assert (await dispatcher.execute("run", timeout=0.05)).error.type == ErrorType.BULKHEAD_FULL
        release.set()
        assert (await dispatcher.execute("run", timeout=5)).text == "late"


async def test_a_thread_keeps_the_place_of_its_call() -> None:
    running: list[asyncio.Future[None]] = []

    async def execute(call: LocalCall) -> str:
        if running:
            return "free"
        running.append(asyncio.get_running_loop().create_future())
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            call.occupied = running[0]
            raise
        return "never"

    policy = {"bulkhead": {"max-concurrent-calls": 1, "max-wait": 0.01}, "retry": None}
    async with connect(execute, **policy) as dispatcher:
        assert (await dispatcher.execute("run", timeout=0.05)).outcome is dispatch.Outcome.TIMEOUT
        assert (await dispatcher.execute("run", timeout=0.05)).outcome is dispatch.Outcome.THROTTLED
        running[0].set_result(None)
        assert (await dispatcher.execute("run", timeout=5)).text == "free"


async def test_the_close_of_the_dispatcher_ends_running_tools() -> None:
    async def execute(call: LocalCall) -> str:
        await asyncio.get_running_loop().create_future()
        return "never"

    dispatcher = connect(execute)
    await dispatcher.start()
    call = asyncio.create_task(dispatcher.execute("run"))
    await asyncio.sleep(0.01)
    await dispatcher.close()
    assert (await call).error.type == ErrorType.CLOSED


async def test_calls_that_finish_during_a_drain_have_their_source() -> None:
    order: list[str] = []
    started = asyncio.Event()

    async def execute(call: LocalCall) -> str:
        started.set()
        await asyncio.sleep(0.05)
        order.append("finished")
        return "done"

    class Closable(Local):
        async def close(self) -> None:
            order.append("closed")

    dispatcher = dispatch.connect("memory://", [Closable(execute)])
    await dispatcher.start()
    call = asyncio.create_task(dispatcher.call("run"))
    await started.wait()
    await dispatcher.close(drain=5)
    assert await call == "done"
    assert order == ["finished", "closed"]


async def test_a_stream_is_read_as_it_comes_and_joined_for_a_call() -> None:
    async def execute(call: LocalCall) -> AsyncIterator[str]:
        return chunks("a", "", "b")

    async with connect(execute) as dispatcher:
        assert [each async for each in dispatcher.stream("run")] == ["a", "b"]
        assert await dispatcher.call("run") == "ab"


@pytest.mark.wall_clock
async def test_a_stream_waits_for_its_reader() -> None:
    produced = 0

    async def endless() -> AsyncIterator[str]:
        nonlocal produced
        while True:
            produced += 1
            yield "x"

    async def execute(call: LocalCall) -> AsyncIterator[str]:
        return endless()

    async with connect(execute) as dispatcher:
        stream = dispatcher.stream("run")
        for _ in range(200):
            await anext(stream)
        await asyncio.sleep(0.01)
        await stream.aclose()
        assert produced < 300


@pytest.mark.wall_clock
async def test_an_endless_stream_that_waits_for_nothing_ends_at_the_deadline_of_its_call() -> None:
    async def endless() -> AsyncIterator[str]:
        while True:
            yield ""

    async def execute(call: LocalCall) -> AsyncIterator[str]:
        return endless()

    async with connect(execute) as dispatcher:
        assert (await dispatcher.execute("run", timeout=0.05)).outcome is Outcome.TIMEOUT


async def test_a_silent_stream_ends_at_its_idle_timeout() -> None:
    async def execute(call: LocalCall) -> AsyncIterator[str]:
        return chunks("a", "b", wait=5)

    async with connect(execute) as dispatcher:
        stream = dispatcher.stream("run", idle_timeout=0.05)
        assert await anext(stream) == "a"
        with pytest.raises(dispatch.CallTimeoutError) as caught:
            await anext(stream)
        assert caught.value.limit_name == "stream-idle"


KNOWN_ONLY = Policy(known_instances_only=True)


def refused(result: object) -> RejectedError:
    error = getattr(result, "error", None)
    assert isinstance(error, RejectedError)
    assert (error.type, error.rejected_by, error.retryable, error.retry_after) == ("no-instance", "balancer", True, 1.0)
    assert "was not executed" in error.message
    return error


async def test_a_call_without_instances_waits_as_long_as_its_tool_could_be_executed_and_sends_nothing() -> None:
    async with Peer.as_service() as stranger, dispatching(policy=KNOWN_ONLY) as dispatcher:
        result = await dispatcher.execute("work", timeout=10)
        error = refused(result)
        assert "lab" in error.message
        assert "is the service running?" in error.message
        assert (result.duration, result.attempts) == (pytest.approx(9.0, abs=0.2), 0)
        with pytest.raises(RejectedError) as caught:
            await anext(dispatcher.stream("work", timeout=10))
        assert caught.value.type == "no-instance"
        assert stranger.arrived.empty()
        assert dispatcher.pending_requests == 0


async def test_a_service_without_instances_for_long_refuses_within_a_second() -> None:
    async with Peer.as_service(), dispatching(policy=KNOWN_ONLY) as dispatcher:
        await dispatcher.execute("work", timeout=GONE_S * 2)
        result = await dispatcher.execute("work", timeout=GONE_S * 2)
        assert refused(result)
        assert result.duration == pytest.approx(DISCOVERY_S, abs=0.1)


async def test_calls_that_wait_for_an_instance_hold_no_place() -> None:
    policy = Policy(known_instances_only=True, bulkhead=Bulkhead(max_concurrent_calls=2))
    async with Peer.as_service(), dispatching(policy=policy) as dispatcher:
        calls = [asyncio.create_task(dispatcher.execute("work")) for _ in range(10)]
        await advance(5)
        assert dispatcher.pending_requests == 0
        async with serving(lambda _: "here"):
            assert [(await call).text for call in calls] == ["here"] * 10


async def test_an_open_circuit_rejects_at_once() -> None:
    async with dispatching(policy=KNOWN_ONLY) as dispatcher:
        dispatcher.breaker("work").force_open()
        result = await dispatcher.execute("work")
        assert (result.error.type, result.duration) == ("circuit-open", pytest.approx(0.0, abs=0.01))


async def test_of_an_unknown_service_a_call_goes_to_the_shared_topic_after_a_second(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Peer.as_service() as stranger, dispatching() as dispatcher:
        call = await start_task(dispatcher.execute("work", timeout=5), DISCOVERY_S - 0.1)
        assert stranger.arrived.empty()
        await advance(0.2)
        assert stranger.arrived.qsize() == 1
        error = (await call).error
        assert isinstance(error, CallTimeoutError)
        assert "no instance has announced itself on non-persistent://tg/request/lab (is the service" in error.message
        assert "may have been executed" in error.message
        assert caplog.text.count("is the service running?") == 1


@pytest.mark.parametrize("read_only", [True, False])
async def test_what_was_sent_to_the_shared_topic_before_an_instance_is_known(read_only: bool) -> None:
    """A repeatable request is sent to the instance, too; another one keeps no other call from its place."""
    catalog_of = catalog(work={"read-only": read_only})
    policy = Policy(bulkhead=Bulkhead(max_concurrent_calls=4), timeout=20)
    async with Peer.as_service() as stranger, dispatching(catalog_of, policy=policy) as dispatcher:
        lost = [asyncio.create_task(dispatcher.execute("work")) for _ in range(4)]
        await advance(3)
        assert stranger.arrived.qsize() == 4
        async with serving(lambda _: "here"):
            results = await asyncio.gather(*(dispatcher.execute("work") for _ in range(20)))
            assert [each.text for each in results] == ["here"] * 20
            outcomes = {(await each).outcome for each in lost}
            assert outcomes == {Outcome.SUCCESS if read_only else Outcome.TIMEOUT}


async def test_few_requests_are_sent_to_a_topic_that_nothing_answers_on() -> None:
    async with Peer.as_service() as stranger, dispatching() as dispatcher:
        calls = [asyncio.create_task(dispatcher.execute("work", timeout=10)) for _ in range(50)]
        await advance(5)
        assert stranger.arrived.qsize() == MAX_UNANSWERED
        _, properties = await stranger.request()
        await stranger.answer(properties, "third-party")
        await advance(3)
        assert stranger.arrived.qsize() == 49
        for call in calls:
            call.cancel()


async def test_on_the_embedded_broker_a_service_that_is_not_there_is_certain() -> None:
    async with dispatching() as dispatcher:
        result = await dispatcher.execute("work")
        assert (result.error.type, result.duration) == ("no-instance", pytest.approx(0.0, abs=0.01))
        assert "non-persistent://tg/request/lab" in result.error.message


async def test_on_the_embedded_broker_a_service_that_has_gone_is_certain_after_any_time() -> None:
    async with dispatching() as dispatcher:
        async with Peer.as_service() as stranger:
            call = asyncio.create_task(dispatcher.call("work"))
            _, properties = await stranger.request()
            await stranger.answer(properties, "third-party")
            assert await call == "third-party"
        for seconds in (0, DISCOVERY_S * 2, GONE_S * 2):
            await advance(seconds)
            result = await dispatcher.execute("work")
            assert (result.error.type, result.duration) == ("no-instance", pytest.approx(0.0, abs=0.01)), seconds


async def test_an_instance_that_starts_meanwhile_gets_the_calls() -> None:
    async with Peer.as_service(), dispatching(policy=KNOWN_ONLY) as dispatcher:
        calls = [asyncio.create_task(dispatcher.call("work")) for _ in range(5)]
        await advance(HELLO_WAIT_S + DISCOVERY_S / 2)
        async with serving(lambda _: "here"):
            assert await asyncio.gather(*calls) == ["here"] * 5


async def test_a_call_during_a_restart_waits_for_the_instance() -> None:
    async with Peer.as_service() as stranger, dispatching() as dispatcher:
        async with serving(lambda _: "before"):
            assert await dispatcher.call("work") == "before"
        call = await start_task(dispatcher.call("work"), DISCOVERY_S * 0.7)
        async with serving(lambda _: "after"):
            assert await call == "after"
        assert stranger.arrived.empty(), "a request went to the shared topic"


async def test_a_service_without_instances_is_a_third_party_one_in_the_end() -> None:
    async with dispatching() as dispatcher:
        async with serving(lambda _: "before"):
            assert await dispatcher.call("work") == "before"
        async with Peer.as_service() as stranger:
            await advance(GONE_S)
            call = await start_task(dispatcher.call("work"), 0.1)
            assert stranger.arrived.qsize() == 1
            _, properties = await stranger.request()
            await stranger.answer(properties, "third-party")
            assert await call == "third-party"


async def test_an_overloaded_instance_passes_the_request_on_and_pauses_alone() -> None:
    served: list[str] = []

    def work(name: str) -> Any:
        async def invoke(_arguments: object) -> str:
            served.append(name)
            await asyncio.sleep(1)
            return name

        return invoke

    async with (
        serving(work("small"), instance="small", concurrency=1, max_queue=0),
        serving(work("large"), instance="large"),
        dispatching() as dispatcher,
    ):
        results = await asyncio.gather(*(dispatcher.execute("work") for _ in range(20)))
        assert [each.outcome for each in results] == [Outcome.SUCCESS] * 20
        assert served.count("small") == 1
        assert dispatcher.breaker("work").retry_after is None


async def test_a_tool_paused_by_its_only_instance_goes_on_when_another_one_is_known() -> None:
    """The overloaded instance was known first, and its pause kept the calls from the ones that followed."""

    async def work(_arguments: object) -> str:
        await asyncio.sleep(1)
        return "done"

    async with (
        serving(work, instance="small", concurrency=1, max_queue=0),
        dispatching(policy=Policy(retry=None)) as dispatcher,
    ):
        await dispatcher.execute("work")
        await advance(DISCOVERY_S)
        first = [asyncio.create_task(dispatcher.execute("work")) for _ in range(20)]
        await advance(0.2)
        assert dispatcher.breaker("work").retry_after is not None
        async with serving(work, instance="large"):
            await idle()
            assert len(dispatcher.instances("lab")) == 2
            results = await asyncio.gather(*(dispatcher.execute("work") for _ in range(3)))
            assert [each.outcome for each in results] == [Outcome.SUCCESS] * 3
        await asyncio.gather(*first)


async def test_an_overloaded_instance_that_is_known_first_does_not_pause_the_tool() -> None:
    """Of a service's instances, the overloaded one is known 50 ms before the others."""

    async def work(_arguments: object) -> str:
        await asyncio.sleep(0.1)
        return "done"

    async with serving(work, instance="small", concurrency=1, max_queue=0), dispatching() as dispatcher:
        calls = []
        async with AsyncExitStack() as others:
            for number in range(40):
                calls.append(asyncio.create_task(dispatcher.execute("work")))
                await advance(0.01)
                if number == 5:
                    await others.enter_async_context(serving(work, instance="large"))
            results = await asyncio.gather(*calls)
    assert [each.outcome for each in results] == [Outcome.SUCCESS] * 40


async def test_a_refusal_pauses_no_tool_while_the_other_instance_is_only_suspected() -> None:
    """A suspected instance has asked for no pause: its connection was gone for a moment."""

    async def work(_arguments: object) -> str:
        await asyncio.sleep(5)
        return "done"

    network = dispatch.testing.FaultyTransport(MemoryTransport(BROKER))
    await network.start()
    async with (
        serving(work, instance="large", broker=network),
        serving(work, instance="small", concurrency=1, max_queue=0),
        dispatching(policy=Policy(retry=None)) as dispatcher,
    ):
        calls = [asyncio.create_task(dispatcher.execute("work")) for _ in range(2)]
        await advance(0.5)
        assert len(dispatcher.instances("lab")) == 2
        network.disconnect(0.7)
        calls += [asyncio.create_task(dispatcher.execute("work")) for _ in range(4)]
        await advance(0.5)
        calls += [asyncio.create_task(dispatcher.execute("work")) for _ in range(8)]
        await advance(0.05)
        assert any(each.done() and each.result().outcome is Outcome.THROTTLED for each in calls[-8:])
        assert dispatcher.breaker("work").retry_after is None
        await asyncio.gather(*calls)
    await network.close()


async def test_a_call_waits_no_longer_than_its_timeout() -> None:
    async with dispatching(policy=KNOWN_ONLY) as dispatcher:
        await dispatcher.execute("work")
        result = await dispatcher.execute("work", timeout=0.2)
        assert refused(result)
        assert result.duration <= 0.21


async def test_an_instance_whose_first_announcement_was_lost_is_found() -> None:
    network = FaultyTransport(MemoryTransport(BROKER), outgoing=FaultPlan(drop=1.0), incoming=FaultPlan(), seed=1)
    async with serving(lambda _: "here"), Dispatcher(network, catalog(), policy=KNOWN_ONLY) as dispatcher:
        call = await start_task(dispatcher.call("work"), HELLO_WAIT_S + 0.05)
        network.heal()
        assert await call == "here"


async def test_a_request_on_a_persistent_topic_needs_no_instance() -> None:
    topics = topics_of("lab", "persistent")
    async with dispatching(catalog(service=topics), policy=KNOWN_ONLY) as dispatcher:
        with pytest.raises(CallTimeoutError):
            await dispatcher.call("work", timeout=1)
        async with serving(lambda _: "here", at=topics):
            assert await dispatcher.call("work", timeout=5) == "here"
