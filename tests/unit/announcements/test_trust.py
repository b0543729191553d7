"""What of an announced descriptor is in force."""

from __future__ import annotations

from typing import Any

import pytest

from dispatch.announcements.trust import Trust, UntrustedError
from dispatch.catalog.loader import read_items
from tests.helpers.announcing import service, tool

TRUST = Trust().within("tg")


def items(
    described: dict[str, Any], *tools: dict[str, Any], trust: Trust = TRUST, is_signed: bool = False
) -> list[Any]:
    return [item.raw for item in trust.make_items("announced", described, tools, is_signed=is_signed)]


def test_unsigned_descriptors_do_not_decide_about_repeating() -> None:
    one = tool(idempotent=True, destructive=False, policy={"timeout": 3})
    own, found = items(service(policy={"retry": 5}), one)
    assert own["policy"] == {"known-instances-only": True}
    assert not {"read-only", "idempotent", "policy"} & set(found)
    assert found["destructive"] is False


@pytest.mark.parametrize(("trust", "is_signed"), [(TRUST, True), (Trust(namespaces=("tg/*",), listed=("sh*",)), False)])
def test_signed_and_listed_ones_do(trust: Trust, is_signed: bool) -> None:
    own, found = items(service(policy={"retry": 5}), tool(policy={"timeout": 3}), trust=trust, is_signed=is_signed)
    assert found["read-only"] is True
    assert found["policy"] == {"timeout": 3}
    assert own["policy"] == ({"retry": 5} if is_signed else {"retry": 5, "known-instances-only": True})


def test_an_unsigned_descriptor_cannot_leave_out_the_handshake() -> None:
    trust = Trust(namespaces=("tg/*",), listed=("shop",))
    open_to_all = {"known-instances-only": False}
    own, found = items(service(policy=open_to_all), tool(policy=open_to_all), trust=trust)
    assert own["policy"] == {"known-instances-only": True}
    assert found["policy"] == {}


def test_a_config_value_keeps_its_name() -> None:
    described = service(config_params=[{"name": "policy"}, {"name": "idempotent"}], version="1.0.0")
    _, found = items(described, tool(policy="text", idempotent="yes"))
    assert (found["policy"], found["idempotent"]) == ("text", "yes")


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        (
            {"request_queue": "non-persistent://evil/request/shop"},
            "its request-queue is in the namespace 'evil/request'",
        ),
        ({"response_queue": "non-persistent://evil/response/shop"}, "its response-queue is in the namespace"),
        ({"request_queue": "local://x"}, "its request-queue is invalid"),
        ({"request_queue": 1}, "its descriptor is invalid"),
        ({"instances": [{"id": "a", "request-queue": "non-persistent://evil/r/a"}]}, r"instances\[\]"),
        ({"id": "other"}, "its id is none of the trusted ones"),
    ],
)
def test_what_is_outside_the_trust_is_refused(keys: dict[str, Any], reason: str) -> None:
    with pytest.raises(UntrustedError, match=reason):
        items(service(**keys), tool(), trust=Trust(namespaces=("tg/re*",), services=("shop",)))


def test_tools_with_other_names_are_left_out() -> None:
    raws = items(
        service(),
        tool("shop-price"),
        tool("transfer"),
        tool(name=5),
        trust=Trust(namespaces=("tg/*",), tools=("shop-*",)),
    )
    assert [raw.get("name") for raw in raws[1:]] == ["shop-price"]


def test_there_is_a_limit_of_tools() -> None:
    with pytest.raises(UntrustedError, match="it has 3 tools, the limit is 2"):
        items(service(), *(tool(f"t{number}") for number in range(3)), trust=Trust(namespaces=("tg/*",), max_tools=2))


def test_tools_belong_to_the_announced_service_and_its_version() -> None:
    found = TRUST.make_items(
        "announced", service(version="1.4.0"), [tool(service="other", type="mcp-tool")], is_signed=False
    )
    assert [item.key for item in found] == ["shop@1.4.0", "price@1.4.0"]
    declared = {key: value for key, value in tool().items() if key != "read-only"}
    assert found[1].raw == declared | {"version": "1.4.0", "requires": "1.4.0"}
    contents, problems = read_items(found)
    assert contents is not None, problems
    assert (contents.tools[0].service, contents.tools[0].requires) == ("shop", "1.4.0")


def test_persistent_services_have_no_sessions() -> None:
    own, _ = items(service(request_queue="persistent://tg/request/shop"), tool())
    assert "policy" not in own


def test_mistakes_in_a_trust_are_explained() -> None:
    with pytest.raises(ValueError, match="signed_only without keys"):
        Trust(signed_only=True)
    with pytest.raises(ValueError, match="max_tools must be from 1 to 1,000"):
        Trust(max_tools=5_000)
    with pytest.raises(TypeError, match="namespaces must be a tuple"):
        Trust(namespaces="tg/*")  # type: ignore[arg-type] # the mistake under test
    with pytest.raises(TypeError, match="namespaces"):
        Trust(namespace=("tg/*",))  # type: ignore[call-arg] # the mistake under test
