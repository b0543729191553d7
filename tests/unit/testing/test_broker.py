"""Services, dispatchers and faults on an embedded broker."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import dispatch
from dispatch import Catalog, CatalogError, Outcome, Policy, ToolService
from dispatch.server import LINGER_S
from dispatch.testing import EmbeddedBroker, FaultInjector, Faults
from dispatch.testing.clock import START, run
from tests.helpers.catalogs import catalog_of
from tests.helpers.dispatcher_and_service import REQUESTS, RESPONSES, UNGUARDED, catalog


class Number(ToolService):
    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> str:
        return f"number {arguments['n']}"


async def test_brokers_are_isolated_from_each_other() -> None:
    one, other = EmbeddedBroker(), EmbeddedBroker()
    async with one.serve(Number(), "lab"), other.connect(catalog(), policy=Policy(timeout=1)) as dispatcher:
        assert (await dispatcher.execute("work", {"n": 1})).outcome is Outcome.REJECTED
    assert asyncio.get_running_loop().time() == pytest.approx(START + LINGER_S)


async def test_services_are_served_until_their_dispatcher_closes() -> None:
    broker = EmbeddedBroker()
    async with broker.connect(catalog(), services={"lab": Number()}, policy=Policy(timeout=1)) as dispatcher:
        assert await dispatcher.call("work", {"n": 1}) == "number 1"
    async with broker.connect(catalog(), policy=Policy(timeout=1)) as dispatcher:
        assert not (await dispatcher.execute("work", {"n": 1})).ok


async def test_a_whole_topic_name_is_used_unchanged() -> None:
    broker = EmbeddedBroker()
    async with (
        broker.serve(Number(), REQUESTS, response_queue=RESPONSES, concurrency=3) as server,
        broker.connect(catalog()) as dispatcher,
    ):
        assert await dispatcher.call("work", {"n": 1}) == "number 1"
        assert (server.concurrency, server.instance) == (3, "lab-1")


async def test_faults_of_one_service_do_not_affect_others() -> None:
    broker = EmbeddedBroker()
    both = Catalog(
        [*catalog().services.values(), *catalog_of("other").services.values()],
        [*catalog().tools.values(), *catalog_of("other").tools.values()],
    )
    async with (
        broker.serve(Number(), "lab", faults=Faults(tool_error=1)),
        broker.serve(Number(), "other"),
        broker.connect(both) as dispatcher,
    ):
        assert (await dispatcher.execute("work", {"n": 1})).outcome is Outcome.TOOL_ERROR
        assert await dispatcher.call("echo", {"n": 2}) == "number 2"


async def test_errors_in_descriptors_are_reported(tmp_path: Path) -> None:
    with pytest.raises(CatalogError):
        async with EmbeddedBroker().connect(tmp_path / "none"):
            raise AssertionError("it must not get here")


async def test_without_a_catalogue_there_are_no_tools() -> None:
    async with EmbeddedBroker().connect() as dispatcher:
        assert not dispatcher.catalog.tools


@dispatch.tool(permissions=("shop:read",))
def price(product: str) -> float:
    """Price of a product in euros."""
    return {"lamp": 19.5}[product]


@pytest.mark.parametrize("served", [price, [price], dispatch.Functions(price)], ids=["function", "list", "source"])
async def test_functions_are_served_with_their_descriptors(served: object) -> None:
    grants = dispatch.Grants.of({"users": {"alice": ["shop:read"]}})
    async with EmbeddedBroker().connect(services={"shop": served}, grants=grants) as dispatcher:
        result = await dispatcher.execute("price", {"product": "lamp"}, user="alice")
        assert (result.text, result.instance) == ("19.5", "shop-1")
        assert (await dispatcher.execute("price", {"product": "lamp"}, user="bob")).error.type == "not-permitted"


async def test_a_catalogue_is_anything_that_a_dispatcher_accepts() -> None:
    broker = EmbeddedBroker()
    sources = [dispatch.Functions(add), catalog()]
    async with broker.connect(sources, services={"lab": Number()}) as dispatcher:
        assert await dispatcher.call("add", {"a": 1, "b": 2}) == "3"
        assert await dispatcher.call("work", {"n": 1}) == "number 1"


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def test_services_that_are_no_dict_are_refused() -> None:
    with pytest.raises(TypeError, match=r"services must be a dict such as \{'joke': Joke\(\)\}, not a list"):
        async with EmbeddedBroker().connect(services=[Number()]):  # type: ignore[arg-type]
            raise AssertionError("it must not get here")


REPAIRED = {"error", "late_error", "drop", "duplicate", "malformed", "reorder", "delay"}
"""Faults of packets that a session repairs: the packet is sent again, or its second copy is ignored."""


def story(kind: str, seed: int) -> list[tuple[str, str | None, int, float]]:
    """Sixty calls, one each 0.1 s, on a loop of their own; the service and the dispatcher have met.

    The calls begin apart because a packet carries all requests of one turn of the loop, and a fault hits a packet.
    """
    injector = FaultInjector()
    broker = EmbeddedBroker(injector)

    async def main() -> list[tuple[str, str | None, int, float]]:
        loop = asyncio.get_running_loop()
        policy = Policy(timeout=3, **UNGUARDED)
        async with broker.connect(catalog(), services={"lab": Number()}, policy=policy) as dispatcher:
            await dispatcher.call("work", {"n": 0})
            fault = {"latency": (0.2, 2.0)} if kind == "latency" else {kind: 0.3}
            injector.inject(Faults(**fault, seed=seed))  # type: ignore[arg-type]

            async def call(n: int) -> tuple[str, str | None, int, float]:
                await asyncio.sleep(n / 10)
                begun = loop.time()
                result = await dispatcher.execute("work", {"n": n})
                return result.outcome, result.error and result.error.type, result.attempts, loop.time() - begun

            told = await asyncio.gather(*(call(n) for n in range(60)))
            injector.heal()
            await asyncio.sleep(30)
            assert await dispatcher.call("work", {"n": 9}) == "number 9", "it is well again"
            assert dispatcher.pending_requests == 0
        return told

    told = run(main)
    assert kind == "latency" or sum(injector.count.values()) > 5
    return told


@pytest.mark.costly
@pytest.mark.parametrize(
    "kind",
    [
        *("latency", "error", "late_error", "drop", "duplicate", "malformed"),
        *("disconnect", "reorder", "delay", "tool_error"),
    ],
)
def test_calls_end_the_same_with_the_same_seed(kind: str) -> None:
    first = story(kind, 1)
    assert len(first) == 60
    assert first == story(kind, 1)
    if kind != "duplicate":  # it changes nothing for a caller, not even the time
        assert first != story(kind, 2)
    if kind in REPAIRED:
        assert all((outcome, times) == ("success", 1) for outcome, _, times, _ in first)
        assert kind == "duplicate" or any(seconds > 0.001 for *_, seconds in first), "the repair takes time"
    else:
        assert any(outcome != "success" for outcome, *_ in first)
