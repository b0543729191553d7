"""``dispatch ping``, ``info`` and ``stats``, and the options of announcements of ``dispatch serve``. As processes:
integration/pulsar/test_announced_services.py."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import dispatch
from dispatch.announcements import DEFAULT_TOPIC, Question
from dispatch.calls.fleet import fleet_topic
from dispatch.cli.base import CliError
from dispatch.cli.serve import read_announce, read_descriptors
from dispatch.cli.wire import ask_fleet, collect, show_fleet, show_info, show_stats
from dispatch.messaging.wire import TopicError, TopicName
from dispatch.resilience.fleet import Need, Report, Table
from dispatch.server import ToolServer
from tests.helpers.announcing import service, tool
from tests.helpers.config_service import config_broker
from tests.unit.cli.conftest import Run, write_catalog

URL = "memory://wire"
TOPIC = str(TopicName.parse(DEFAULT_TOPIC))
KEY = b"k" * 32


class Shop(dispatch.ToolService):
    """Fails for one product."""

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> str:
        if arguments["product"] == "bad":
            raise dispatch.ToolError("bad", "No such product.")
        return "3.5"


def shop(name: str, instance: str, **options: Any) -> ToolServer:
    return ToolServer(Shop(), URL, service=name, instance=instance, tools=[tool(service=name)], **options)


async def asked(question: Question, trust: dispatch.Trust | None = None) -> list[Any]:
    async with config_broker(URL) as broker:
        return await collect(broker, TOPIC, question, 0.5, (trust or dispatch.Trust()).within("tg"))


async def test_instances_answer_with_load_tools_and_trust() -> None:
    labels = dispatch.Announce(labels={"zone": "eu"}, keys={"a": KEY})
    outside = {f"{kind}_queue": f"non-persistent://acme/{kind}/x" for kind in ("request", "response")}
    async with (
        shop("shop", "s2", descriptor={"version": "1.0.0"}, announce=labels),
        shop("shop", "s1", descriptor={"version": "1.0.0"}),
        shop("bank", "b1"),
        shop("far", "f1", **outside),
        dispatch.connect(URL, dispatch.Announced()) as dispatcher,
    ):
        for product in ("lamp", "bad"):
            await dispatcher.execute("price", {"product": product})
        found = await asked(Question(stats=True, part=1), dispatch.Trust(keys={"a": KEY}))
        seen = [(each.service, each.instance) for each in found]
        assert seen == [("bank", "b1"), ("far", "f1"), ("shop", "s1"), ("shop", "s2")]
        bank, far, _, signed = found
        assert (signed.version, signed.labels, signed.is_signed) == ("1.0.0", {"zone": "eu"}, True)
        assert bank.tools == ["price"]
        assert (bank.ignored, signed.ignored) == (["read-only"], [])
        assert show_info([bank, signed]).columns["trust"] == ["by proof, without its read-only", "signed"]
        (listed,) = await asked(Question(service="bank", stats=True, part=1), dispatch.Trust(listed=("bank",)))
        assert listed.ignored == []
        assert "which is not trusted" in far.untrusted
        assert sum(each.stats["requests"] for each in found) == 2
        assert sum(each.stats["errors"] for each in found) == 1
        assert all(each.stats["age"] >= 0 and each.stats["running"] == 0 for each in found)
        assert [each.instance for each in await asked(Question(service="bank", stats=True))] == ["b1"]
        assert await asked(Question(service="nobody", stats=True)) == []


async def test_odd_announcements_harm_neither_their_neighbours_nor_the_terminal() -> None:
    evil = "\x1b[2J\nbank  b1"
    info = {"id": "x", "incarnation": "1", "labels": {"admin": "http://[", evil: evil}}
    queues = {f"{kind}-queue": f"non-persistent://tg/{kind}/{evil}" for kind in ("request", "response")}
    good = {"announce": "here", "service": {"id": evil, **queues}, "instance": info, "sequence": 1, "digest": "d"}
    deep = json.loads("[" * 500 + "]" * 500)
    odd = [good | {"stats": {"requests": 10**300, "age": "old"}}, good | {"stats": {"deep": deep}, "digest": "e"}]
    odd += [good | {"stats": stats} for stats in ([], 7, None)]
    async with config_broker(URL, "rogue") as broker, shop("bank", "b1"):
        asking = asyncio.ensure_future(asked(Question(stats=True)))
        await asyncio.sleep(0.1)
        for payload in (*(json.dumps(each).encode() for each in odd), b"[" * 10_000, b'"\\ud800"', b"\xff", b""):
            await broker.publish(TOPIC, payload)
        found = await asking
    assert [each.service for each in found] == [evil, "bank"]
    for show in (show_info, show_stats):
        cells = [cell for column in show(found).columns.values() for cell in column]
        assert all(cell.isprintable() for cell in cells)


@pytest.mark.costly
def test_a_wrong_topic_and_the_embedded_broker_are_explained(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "'tools' is no whole topic name" in run.refused("ping", "--topic", "tools")
    assert "memory:// is the embedded broker" in run("stats", "--broker", "memory://").err
    assert "add --trustgraph" in run("mirror").err
    assert "name it with --workspace NAME" in run("mirror", "--workspace", "*").err
    assert "is invalid" in run("info", "--trust", __file__).err
    monkeypatch.setenv("DISPATCH_ANNOUNCEMENTS", "tools")
    assert "DISPATCH_ANNOUNCEMENTS: 'tools' is no whole topic name" in run("tools", "--announced").err
    assert "'tools' is no whole topic name" in run("stats").err


def test_options_of_announcements(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({"2026": "a secret of some length"}))
    announce = read_announce(DEFAULT_TOPIC, str(keys), ["zone=eu", "x="])
    assert announce == dispatch.Announce(keys={"2026": b"a secret of some length"}, labels={"zone": "eu", "x": ""})
    assert read_announce("off", None, ()) is None
    for topic, file, labels, problem in (
        ("tools", None, (), "no whole topic name"),
        (DEFAULT_TOPIC, str(tmp_path / "missing"), (), "cannot be read"),
        (DEFAULT_TOPIC, __file__, (), "is invalid"),
        (DEFAULT_TOPIC, None, ("zone",), "is not KEY=VALUE"),
    ):
        with pytest.raises((CliError, TopicError), match=problem):
            read_announce(topic, file, labels)
    keys.write_text('{"a": "short"}')
    with pytest.raises(CliError, match="at least 16"):
        read_announce(DEFAULT_TOPIC, str(keys), ())


def test_descriptors_of_a_service_class_come_from_a_folder(tmp_path: Path) -> None:
    folder = write_catalog(tmp_path / "tools")
    queue = json.loads((folder / "tool-service" / "joke-service.json").read_text())["request-queue"]
    described = read_descriptors(str(folder), str(TopicName.parse(queue)))
    assert described.service["id"] == "joke-service"
    assert [each["name"] for each in described.tools] == ["tell-joke"]
    with pytest.raises(CliError, match="has no tools of a service with the request-queue"):
        read_descriptors(str(folder), service()["request-queue"])


def test_a_limit_with_different_numbers_shows_them(capsys: pytest.CaptureFixture[str]) -> None:
    reports = {id: Report(id, 1, needs={"rate:quote": Need(limit, {})}) for id, limit in (("a", 9.0), ("b", 5.0))}
    show_fleet(reports, Table("a", 1, 1, ["a", "b"]))
    assert "rate:quote  5/s (elsewhere 9/s)" in capsys.readouterr().out


async def test_limits_of_a_fleet_are_written_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    @dispatch.tool
    async def quote() -> str:
        """Write a quote."""
        return "9"

    policy: dict[str, Any] = {"rate-limit": {"rate": "20000/s", "burst": 5, "scope": "fleet"}, "quota": "1234567/month"}
    async with dispatch.connect(URL, [dispatch.Functions(quote)], policy=policy, fleet="shop") as dispatcher:
        await dispatcher.call("quote")
        async with config_broker(URL) as broker:
            show_fleet(*await ask_fleet(broker, fleet_topic("shop"), 2.5))
    shown = {line.split()[0]: line.split()[1] for line in capsys.readouterr().out.splitlines()}
    assert (shown["quota:quote:month"], shown["rate:quote"]) == ("1,234,567", "20,000/s")
