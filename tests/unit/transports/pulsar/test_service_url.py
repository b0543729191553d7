"""Broker addresses: what they mean, and what is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dispatch
from dispatch.cli.base import Settings
from dispatch.errors import TransportError
from dispatch.transports import open_transport
from dispatch.transports.pulsar.handshake import broker_urls, endpoints


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("pulsar://localhost", [("localhost", 6650)]),
        ("pulsar://localhost/", [("localhost", 6650)]),
        ("PULSAR+SSL://localhost", [("localhost", 6651)]),
        ("pulsar://localhost:", [("localhost", 6650)]),
        ("pulsar://localhost:1", [("localhost", 1)]),
        ("pulsar://localhost:65535", [("localhost", 65535)]),
        ("pulsar+ssl://broker.example", [("broker.example", 6651)]),
        ("pulsar+ssl://broker.example:443", [("broker.example", 443)]),
        ("pulsar://a:1,b,c:3", [("a", 1), ("b", 6650), ("c", 3)]),
        ("pulsar://[::1]", [("::1", 6650)]),
        ("pulsar://[fe80::1]:7,127.0.0.1", [("fe80::1", 7), ("127.0.0.1", 6650)]),
        ("pulsar://żółć.example", [("żółć.example", 6650)]),
    ],
)
def test_an_address_names_hosts_and_ports(url: str, found: list[tuple[str, int]]) -> None:
    assert endpoints(url) == found


NO_ADDRESSES = [
    "",
    "localhost:6650",
    "http://localhost:6650",
    "pulsar:/localhost",
    "pulsar://",
    "pulsar://:6650",
    "pulsar://a,",
    "pulsar://a,,b",
    "pulsar://a:port",
    "pulsar://a:-1",
    "pulsar://a:0",
    "pulsar://a:65536",
    "pulsar://a:" + "9" * 5_000,
    "pulsar://a:²",
    "pulsar://a:٣",
    "pulsar://a:1:2",
    "pulsar://a b",
    "pulsar://a\n:1",
    "pulsar://a\0:1",
    "pulsar://a/tenant/namespace",
    "pulsar://me:secret@a:1",
    "pulsar://me@a",
    "pulsar://a?x=1",
    "pulsar://a#b",
    "pulsar://::1",
    "pulsar://[::1",
    "pulsar://[::1]6650",
    "pulsar://[]:1",
]


@pytest.mark.parametrize("url", NO_ADDRESSES, ids=lambda url: repr(url)[:40])
def test_what_is_no_address_is_told_before_anything_is_opened(url: str) -> None:
    for attempt in (endpoints, open_transport):
        with pytest.raises(TransportError, match="pulsar://HOST:6650") as caught:
            attempt(url)
        assert (caught.value.type, caught.value.may_have_run) == ("bad-address", False)


@given(st.text(max_size=40))
def test_any_text_is_an_address_or_is_told_to_be_none(rest: str) -> None:
    try:
        found = endpoints(f"pulsar://{rest}")
    except TransportError:
        return
    assert found
    assert all(host and 0 < port < 65536 for host, port in found)


HOSTS = st.from_regex(r"[a-z][a-z0-9-]{0,20}(\.[a-z]{1,5})?", fullmatch=True)


@given(st.lists(st.tuples(HOSTS, st.integers(1, 65535)), min_size=1, max_size=5))
def test_what_was_written_is_read(brokers: list[tuple[str, int]]) -> None:
    assert endpoints("pulsar://" + ",".join(f"{host}:{port}" for host, port in brokers)) == brokers


@pytest.mark.parametrize(
    ("url", "brokers"),
    [
        ("pulsar://localhost/", ["pulsar://localhost/"]),
        ("pulsar://a,b:7,[::1]", ["pulsar://a:6650", "pulsar://b:7", "pulsar://[::1]:6650"]),
        ("pulsar+ssl://a:1,b", ["pulsar+ssl://a:1", "pulsar+ssl://b:6651"]),
    ],
)
def test_each_broker_of_a_list_has_a_url(url: str, brokers: list[str]) -> None:
    assert broker_urls(url) == brokers


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("PULSAR://Broker.Example:7", "pulsar://Broker.Example:7"),
        (" Pulsar+SSL://a,b \n", "pulsar+ssl://a,b"),
        ("MEMORY://Lab", "memory://Lab"),
    ],
)
def test_the_case_of_a_scheme_and_blanks_around_an_address_do_not_matter(
    url: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert open_transport(url).url == address
    monkeypatch.setenv("DISPATCH_BROKER", url)
    assert dispatch.connect()._transport.url == address
    assert Settings().broker_url == Settings(broker=url).broker_url == address


def test_a_blank_address_in_the_environment_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPATCH_BROKER", " \n")
    assert Settings().broker_url == open_transport("DISPATCH_BROKER").url == "pulsar://localhost:6650"


@pytest.mark.parametrize("port", ["99999", "0", "x", "6650/tenant"])
def test_a_wrong_port_is_named(port: str) -> None:
    with pytest.raises(
        TransportError, match=f"is not a broker address: its port '{port}' is not a number from 1 to 65535"
    ):
        open_transport(f"pulsar://a,b:{port}")


@pytest.mark.parametrize(
    ("url", "shown"), [("pulsar://me:s3/cr@et@a:1", "pulsar://…@a:1"), ("me:s3cret@a", "…@a"), ("@", "…@")]
)
def test_credentials_in_an_address_are_not_repeated(url: str, shown: str) -> None:
    with pytest.raises(TransportError, match="DISPATCH_TOKEN") as caught:
        open_transport(url)
    assert f"'{shown}' is not a broker address" in caught.value.message
    assert "s3" not in caught.value.message


def test_a_token_in_the_environment_may_end_with_a_line_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPATCH_TOKEN", "abc\n")
    assert dispatch.Security.from_environment().token == "abc"
