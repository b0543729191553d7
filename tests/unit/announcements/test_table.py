"""The table of announced services: what is believed, what is alive, and which descriptors are in force."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from dispatch.announcements.messages import MAX_BYTES
from dispatch.announcements.table import GONE_S, LATE_TICK_S, MAX_ASKED, MAX_WAITING, AnnouncementTable
from dispatch.announcements.trust import Trust
from dispatch.catalog.items import Refused
from tests.helpers.announcing import AnnouncingInstance, names, service, settle, tool

KEY = b"k" * 32


class World:
    """A table and its clock."""

    def __init__(self, **trust: Any) -> None:
        self.table = AnnouncementTable(Trust(**trust).within("tg"))
        self.now = 1_000.0
        self.table.tick(self.now)

    def advance(self, seconds: float, *beating: AnnouncingInstance, is_connected: bool = True) -> None:
        """Let time pass; ``beating`` announce themselves every 5 s."""
        for second in range(round(seconds)):
            self.now += 1
            self.table.tick(self.now, is_connected=is_connected)
            for each in beating if second % 5 == 4 else ():
                self.table.receive(each.heartbeat())
            settle(self.table, *beating)

    def announce(self, *instances: AnnouncingInstance) -> None:
        """Announce instances, and let them prove themselves."""
        for each in instances:
            for message in each.writer.write_all(each.parts):
                self.table.receive(message)
        settle(self.table, *instances)


def test_a_claim_changes_nothing_until_it_is_proved() -> None:
    world, one = World(), AnnouncingInstance()
    world.table.receive(one.heartbeat())
    assert names(world.table) == []
    assert settle(world.table, one) == 1
    assert names(world.table) == ["price"]
    assert [item.kind for item in world.table.items()] == ["tool-service", "tool"]


def test_descriptors_come_from_the_answer_not_from_the_claim() -> None:
    world, one = World(), AnnouncingInstance()
    world.table.receive(
        AnnouncingInstance(tools=[tool("forged")]).writer.write_all(AnnouncingInstance(tools=[tool("forged")]).parts)[0]
    )
    settle(world.table, one)
    assert names(world.table) == ["price"]


def test_descriptors_in_parts_are_asked_for_one_after_the_other() -> None:
    tools = [tool(f"tool-{number}", description="x" * 20_000) for number in range(100)]
    world, one = World(), AnnouncingInstance(tools=tools)
    world.table.receive(one.heartbeat())
    assert settle(world.table, one) == len(one.parts.parts) > 8
    assert names(world.table) == [each["name"] for each in tools]


def test_heartbeats_of_a_known_instance_ask_nothing() -> None:
    world, one, two = World(), AnnouncingInstance("shop-1"), AnnouncingInstance("shop-2")
    world.announce(one)
    version, items = world.table.version, world.table.items()
    for _ in range(100):
        world.table.receive(one.heartbeat())
        world.table.receive(two.heartbeat())
    assert not world.table.is_asking
    assert world.table.version == version
    assert all(former is now for former, now in zip(items, world.table.items(), strict=True))
    assert list(world.table.services["shop", None].instances) == ["shop-1", "shop-2"]


def test_a_silent_instance_is_removed_and_its_service_60_s_later() -> None:
    world, one = World(), AnnouncingInstance()
    world.announce(one)
    world.advance(100, one)
    world.advance(16)
    assert not world.table.services["shop", None].instances
    world.advance(GONE_S - 2)
    assert names(world.table) == ["price"]
    world.advance(2)
    assert names(world.table) == []
    assert not world.table.services


def test_a_service_that_returns_in_time_never_leaves() -> None:
    world, one = World(), AnnouncingInstance()
    world.announce(one)
    version = world.table.version
    world.table.receive(one.bye())  # at once after its proof: it is asked a second later
    world.advance(1, one)
    assert not world.table.services["shop", None].instances
    world.advance(GONE_S - 2)
    successor = AnnouncingInstance(incarnation="2")
    world.announce(successor)
    world.advance(GONE_S * 2, successor)
    assert names(world.table) == ["price"]
    assert world.table.version == version


def test_nothing_ages_while_the_connection_is_down() -> None:
    world, one = World(), AnnouncingInstance()
    world.announce(one)
    world.advance(3_600, is_connected=False)
    world.advance(10)
    assert world.table.services["shop", None].instances
    world.advance(7)
    assert not world.table.services["shop", None].instances


def test_nothing_ages_while_the_process_is_suspended() -> None:
    world, one = World(), AnnouncingInstance()
    world.announce(one)
    world.now += 3_600
    world.table.tick(world.now)
    assert world.table.services["shop", None].instances
    world.now -= 100  # a clock that goes back costs nothing
    world.table.tick(world.now)
    world.advance(17)
    assert not world.table.services["shop", None].instances
    assert LATE_TICK_S < 15


def test_a_forged_end_is_refuted_and_a_genuine_one_is_believed() -> None:
    world, one = World(), AnnouncingInstance()
    world.announce(one)
    world.advance(2)
    forger = AnnouncingInstance()
    forger.writer._sequence = 10**6
    world.table.receive(forger.bye())
    assert settle(world.table, one) == 1
    assert world.table.services["shop", None].instances
    world.advance(2)
    one.is_alive = False
    world.table.receive(one.bye())
    settle(world.table, one)
    assert not world.table.services["shop", None].instances


def test_a_question_that_could_not_be_asked_says_nothing() -> None:
    world, one = World(), AnnouncingInstance()
    world.announce(one)
    world.advance(2)
    world.table.receive(one.bye())
    (inquiry,) = world.table.pop_inquiries()
    world.table.abandon(inquiry)
    world.table.receive_answer(inquiry, None)
    assert world.table.services["shop", None].instances
    assert not world.table.is_asking


def test_a_forged_sequence_does_not_silence_the_instance() -> None:
    world, one = World(), AnnouncingInstance()
    world.announce(one)
    forger = AnnouncingInstance()
    forger.writer._sequence = 10**6
    world.table.receive(forger.heartbeat())
    world.advance(120, one)
    assert world.table.services["shop", None].instances["shop-1"].sequence < 1_000


def test_late_and_older_messages_are_ignored() -> None:
    world, old, new = World(), AnnouncingInstance(incarnation="1"), AnnouncingInstance(incarnation="2")
    late = new.heartbeat()
    world.announce(new)
    world.advance(2)
    for message in (late, old.heartbeat(), old.bye(), *old.change([tool("former")])):
        world.table.receive(message)
    assert not world.table.is_asking
    assert world.table.services["shop", None].instances["shop-1"].info.incarnation == "2"


def test_a_changed_service_is_asked_again() -> None:
    world, one = World(), AnnouncingInstance()
    world.announce(one)
    world.advance(2)
    for message in one.change([tool("price"), tool("order")]):
        world.table.receive(message)
    settle(world.table, one)
    assert names(world.table) == ["price", "order"]


def test_of_two_descriptors_of_one_version_the_first_stays() -> None:
    world = World()
    one, two = AnnouncingInstance("shop-1"), AnnouncingInstance("shop-2", tools=[tool("price", description="Other")])
    world.announce(one)
    world.announce(two)
    found = world.table.services["shop", None]
    assert [each.info.id for each in found.conflicting] == ["shop-2"]
    assert world.table.items()[1].raw["description"] == "Price of a product"  # type: ignore[index] # an object
    refused = world.table.items()[-1]
    assert refused.origin == "announced:shop, instance shop-2"
    assert isinstance(refused.raw, Refused)
    assert "it has other descriptors than the first instance" in str(refused.raw.problems[0])
    world.advance(30, two)  # the first one is silent
    assert len(world.table.items()) == 2
    assert world.table.items()[1].raw["description"] == "Other"  # type: ignore[index] # an object
    assert not world.table.services["shop", None].conflicting
    assert not world.table.shares


def test_the_share_of_an_instance_is_its_weight_once_it_is_proved() -> None:
    world = World()
    one, light, heavy = (
        AnnouncingInstance(),
        AnnouncingInstance("light", weight=0.5),
        AnnouncingInstance("heavy", weight=1e9),
    )
    other = AnnouncingInstance("other", tools=[tool("order")])
    world.announce(one)
    world.table.receive(light.heartbeat())
    assert not world.table.shares
    world.announce(light, heavy, other)
    shares = {"light": 0.5, "heavy": 100.0, "other": 0.0}
    assert world.table.pop_changed_shares() == [(one.queue, shares)]
    world.announce(light, heavy, other)
    assert world.table.pop_changed_shares() == []
    world.advance(30, one, heavy)
    assert world.table.pop_changed_shares() == [(one.queue, {"heavy": 100.0})]
    world.advance(30, one)
    assert world.table.pop_changed_shares() == [(one.queue, {})]
    assert not world.table.shares


def test_a_rolling_restart_changes_the_descriptors_once() -> None:
    world = World()
    first = [AnnouncingInstance(f"shop-{number}") for number in range(4)]
    later = [AnnouncingInstance(f"shop-{number}", incarnation="2", tools=[tool("order")]) for number in range(4)]
    world.announce(*first)
    items = {id(item) for item in world.table.items()}
    for index, each in enumerate(later):
        world.table.receive(first[index].bye())
        settle(world.table, *first, *later[: index + 1])
        world.announce(each)
        world.advance(6, *later[: index + 1], *first[index + 1 :])
        assert names(world.table) == (["price"] if index < 3 else ["order"])
        assert (items <= {id(item) for item in world.table.items()}) is (index < 3)
    assert len(world.table.items()) == 2


def test_versions_are_side_by_side() -> None:
    world = World()
    former = AnnouncingInstance("a-1", described=service(version="1.0.0"))
    latter = AnnouncingInstance("a-2", described=service(version="2.0.0"))
    world.announce(former)
    world.announce(latter)
    assert names(world.table) == ["price@1.0.0", "price@2.0.0"]


def test_signed_announcements_need_no_question() -> None:
    world, one = World(keys={"k": KEY}), AnnouncingInstance(keys={"k": KEY})
    for message in one.writer.write_all(one.parts):
        world.table.receive(message)
    assert names(world.table) == ["price"]
    assert world.table.items()[1].raw["read-only"] is True  # type: ignore[index] # an object
    assert not world.table.is_asking
    world.table.receive(one.bye())
    assert not world.table.services["shop", None].instances


def test_signed_parts_are_put_together_in_any_order() -> None:
    tools = [tool(f"tool-{number}", description="x" * 20_000) for number in range(100)]
    world, one = World(keys={"k": KEY}), AnnouncingInstance(tools=tools, keys={"k": KEY})
    for message in reversed([one.writer.write_all(one.parts)[index] for index in range(len(one.parts.parts))]):
        assert names(world.table) == []
        world.table.receive(message)
    assert names(world.table) == [each["name"] for each in tools]


def test_only_signed_ones_are_believed_if_that_is_asked_for() -> None:
    world = World(keys={"k": KEY}, signed_only=True)
    unsigned, wrong = AnnouncingInstance("a"), AnnouncingInstance("b", keys={"k": b"w" * 32})
    world.announce(unsigned, wrong)
    assert not world.table.services
    assert world.table.refused["unsigned"] == 2
    assert "no valid signature" in world.table.pop_reports()[0]
    world.announce(AnnouncingInstance("c", keys={"k": KEY}))
    assert names(world.table) == ["price"]


def test_signed_descriptors_precede_unsigned_ones() -> None:
    world = World(keys={"k": KEY})
    world.announce(AnnouncingInstance("a", tools=[tool("other")]))
    world.announce(AnnouncingInstance("b", keys={"k": KEY}))
    assert names(world.table) == ["price"]


def test_unsigned_answers_change_and_end_no_signed_service() -> None:
    world, genuine = World(keys={"k": KEY}), AnnouncingInstance(keys={"k": KEY})
    world.announce(genuine)
    version = world.table.version
    for liar in (AnnouncingInstance(incarnation="9", tools=[tool("other")]), AnnouncingInstance(incarnation="9")):
        world.advance(2)
        world.table.receive(liar.heartbeat())
        settle(world.table, liar)  # it answers in place of the genuine instance
        world.advance(2)
        world.table.receive(liar.bye())
        settle(world.table, liar)
        world.advance(6, genuine)
        assert world.table.services["shop", None].instances["shop-1"].info.incarnation == "1"
    assert world.table.version == version
    assert world.table.services["shop", None].is_signed
    assert world.table.services["shop", None].instances


def test_a_signed_last_part_does_not_sign_the_others() -> None:
    tools = [tool(f"tool-{number}", description="x" * 20_000) for number in range(20)]
    signed, unsigned = AnnouncingInstance(tools=tools, keys={"k": KEY}), AnnouncingInstance(tools=tools)
    world = World(keys={"k": KEY})
    world.table.receive(unsigned.heartbeat())
    while asked := list(world.table.pop_inquiries()):
        (inquiry,) = asked
        last = inquiry.part == len(signed.parts.parts)
        world.table.receive_answer(inquiry, (signed if last else unsigned).answer(inquiry))
    assert len(names(world.table)) == 20
    assert not any("read-only" in item.raw for item in world.table.items())  # type: ignore[operator] # objects


def test_descriptors_that_change_between_two_parts_are_asked_for_again() -> None:
    def large(text: str) -> list[dict[str, Any]]:
        return [tool(f"{text}-{number}", description=text * 20_000) for number in range(20)]

    world, one = World(), AnnouncingInstance(tools=large("a"))
    world.table.receive(one.heartbeat())
    (inquiry,) = world.table.pop_inquiries()
    world.table.receive_answer(inquiry, one.answer(inquiry))
    one.change(large("b"))
    settle(world.table, one)
    assert names(world.table)[0] == "b-0"
    restless, count = AnnouncingInstance("restless", described=service("bank"), tools=large("c")), 0
    world.table.receive(restless.heartbeat())
    while asked := list(world.table.pop_inquiries()):
        count += 1
        restless.change(large(f"{count}"))
        world.table.receive_answer(asked[0], restless.answer(asked[0]))
    assert 10 < count <= 64
    assert ("bank", None) not in world.table.services


def test_a_late_answer_with_another_part_and_one_of_another_service_are_ignored() -> None:
    world, one = World(), AnnouncingInstance(tools=[tool(f"t-{n}", description="x" * 20_000) for n in range(20)])
    world.table.receive(one.heartbeat())
    (inquiry,) = world.table.pop_inquiries()
    inquiry_of_second = msgspec.structs.replace(inquiry, part=2)
    world.table.receive_answer(inquiry, one.answer(inquiry_of_second))
    assert not world.table.is_asking
    assert not world.table.services
    untrusted = World(services=("bank",))
    untrusted.table.receive(
        AnnouncingInstance("shop-1", described=service("bank", request_queue=one.queue)).heartbeat()
    )
    settle(untrusted.table, one)
    assert untrusted.table.refused["untrusted"] == 1
    assert not untrusted.table.services


def test_what_is_outside_the_trust_is_not_even_asked() -> None:
    world = World()
    evil = service(request_queue="non-persistent://evil/request/shop")
    world.table.receive(AnnouncingInstance(described=evil).heartbeat())
    assert not world.table.is_asking
    assert "namespace 'evil/request', which is not trusted" in world.table.pop_reports()[0]
    world.table.receive(AnnouncingInstance(described=evil).heartbeat())
    assert world.table.pop_reports() == []  # once a minute
    assert world.table.refused["untrusted"] == 2


def test_an_answer_counts_for_its_own_instance_and_topic_only() -> None:
    world, one = World(), AnnouncingInstance()
    other = AnnouncingInstance(described=service(request_queue="non-persistent://tg/request/other"))
    for message in (
        AnnouncingInstance("shop-2").heartbeat(),
        other.heartbeat(),
        b"",
        b"[]",
        json.dumps({"announce": "who"}).encode(),
    ):
        world.table.receive(one.heartbeat())
        (inquiry,) = world.table.pop_inquiries()
        world.table.receive_answer(inquiry, message)
        world.table.receive_answer(inquiry, one.answer(inquiry))  # the question is answered already
        assert not world.table.services
        world.advance(2)
    assert world.table.refused["malformed"] == 5


def test_a_flood_of_claims_is_bounded() -> None:
    world = World()
    for number in range(5_000):
        world.table.receive(AnnouncingInstance(f"shop-{number}", described=service(f"s{number % 3_000}")).heartbeat())
    asked = list(world.table.pop_inquiries())
    assert len(asked) == MAX_ASKED
    for inquiry in asked:
        world.table.receive_answer(inquiry, None)
    assert settle(world.table) == MAX_WAITING - MAX_ASKED
    assert not world.table.services
    one = AnnouncingInstance()
    world.announce(one)
    assert names(world.table) == ["price"]


def test_a_genuine_claim_does_not_wait_for_the_questions_about_forged_ones() -> None:
    world, one = World(), AnnouncingInstance()
    for number in range(MAX_WAITING):
        world.table.receive(AnnouncingInstance(described=service(f"forged-{number}")).heartbeat())
    asked = list(world.table.pop_inquiries())
    world.table.receive(one.heartbeat())
    world.table.receive_answer(asked[0], None)
    assert [each.request_queue for each in world.table.pop_inquiries()] == [one.queue]


def test_there_are_limits_of_instances_items_and_tools() -> None:
    world = World(max_instances=2, max_items=5, max_tools=2)
    world.announce(*(AnnouncingInstance(f"shop-{number}") for number in range(5)))
    assert len(world.table.services["shop", None].instances) == 2
    world.announce(AnnouncingInstance("b", described=service("b")))
    world.announce(AnnouncingInstance("c", described=service("c")))
    assert [item.key for item in world.table.items()] == ["shop", "price", "b", "price"]
    assert any("5 announced services and tools already" in each for each in world.table.pop_reports())
    world.announce(AnnouncingInstance("d", described=service("d"), tools=[tool(f"t{number}") for number in range(3)]))
    assert any("it has more than 2 tools" in each for each in world.table.pop_reports())
    assert world.table.refused["limit"] == 5


@pytest.mark.parametrize(
    "payload", [b"", b"\xff", b"{" * 10_000, b"[" * 200_000, b" " * (MAX_BYTES + 1), b"9" * 100_000]
)
def test_malformed_messages_are_counted(payload: bytes) -> None:
    world = World()
    world.table.receive(payload)
    assert world.table.refused["malformed"] == 1
