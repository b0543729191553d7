"""Whatever is lost: the client's receipts come in order, each once; the broker's permits come back, none too many."""

from __future__ import annotations

import random
import struct
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.lossy_proxy_connection import Exchange, Pieces
from tests.helpers.pulsar_frames import (
    CLOSE_PRODUCER,
    FLOW,
    LOOKUP_RESPONSE,
    MESSAGE,
    PRODUCER,
    SEND,
    SEND_ERROR,
    SEND_RECEIPT,
    Field,
    Frames,
    body_of,
    decode,
    encode,
    frame,
    numbers_of,
    type_of,
)
from tests.helpers.test_pulsar_frames import cut

URL = "pulsar://127.0.0.1:7777"
PING = frame(18, [])
PRODUCERS = (1, 2, 300)


class Scene:
    """An exchange with its counts, and dice that fall alike for the same ``seed``."""

    def __init__(self, loss_out: float = 0.0, loss_in: float = 0.0, seed: int = 0) -> None:
        self.tally: Any = SimpleNamespace(
            loss_out=loss_out, loss_in=loss_in, dropped_sends=0, dropped_messages=0, passed_sends=0, passed_messages=0
        )
        self.exchange = Exchange(URL, self.tally, random.Random(seed), random.Random(seed + 1))


def with_payload(type: int, fields: list[Field], payload: bytes = b"payload", metadata: bytes = b"\x10\x05") -> bytes:
    command = encode([(1, type), (type, encode(fields))])
    tail = b"\x0e\x01\x00\x00\x00\x00" + struct.pack(">I", len(metadata)) + metadata + payload
    return struct.pack(">II", 4 + len(command) + len(tail), len(command)) + command + tail


def send(producer: int, sequence: int, *more: Field, payload: bytes = b"payload") -> bytes:
    return with_payload(SEND, [(1, producer), (2, sequence), *more], payload)


def message(consumer: int, count: int = 1, payload: bytes = b"payload") -> bytes:
    metadata = encode([(2, 5)] if count == 1 else [(2, 5), (11, count)])
    return with_payload(MESSAGE, [(1, consumer), (2, encode([(1, 0), (2, 0)]))], payload, metadata)


def receipt(producer: int, sequence: int) -> bytes:
    return frame(SEND_RECEIPT, [(1, producer), (2, sequence), (3, encode([(1, 12), (2, 34)]))])


def commands(pieces: Pieces) -> list[memoryview]:
    return list(Frames().feed(b"".join(pieces)))


def receipts(pieces: Pieces) -> list[tuple[int, int]]:
    found = [numbers_of(whole) for whole in commands(pieces) if type_of(whole) == SEND_RECEIPT]
    return [(numbers[1], numbers[2]) for numbers in found]


def permits(pieces: Pieces) -> Counter[int]:
    given: Counter[int] = Counter()
    for whole in commands(pieces):
        assert type_of(whole) == FLOW
        numbers = numbers_of(whole)
        given[numbers[1]] += numbers[2]
    return given


CLIENT_SAYS = st.lists(
    st.one_of(
        st.builds(send, st.sampled_from(PRODUCERS), st.integers(0, 2**63), payload=st.binary(max_size=300)),
        st.sampled_from([PING, frame(FLOW, [(1, 3), (2, 10_000)]), frame(PRODUCER, [(1, b"topic"), (2, 1), (3, 5)])]),
    ),
    max_size=30,
)
BROKER_SAYS = st.lists(
    st.one_of(
        st.builds(message, st.integers(0, 3), st.integers(1, 200), st.binary(max_size=300)),
        st.builds(receipt, st.sampled_from(PRODUCERS), st.integers(0, 2**63)),
        st.sampled_from([PING, frame(CLOSE_PRODUCER, [(1, 1), (2, 2**64 - 1)])]),
    ),
    max_size=30,
)
CUTS = st.lists(st.integers(0, 20_000), max_size=40)
CHANCES = st.sampled_from([0.0, 0.3, 1.0])


@given(CLIENT_SAYS, BROKER_SAYS, CUTS)
def test_without_loss_every_byte_passes(client: list[bytes], broker: list[bytes], cuts: list[int]) -> None:
    exchange = Scene().exchange
    for said, route in ((b"".join(client), exchange.from_client), (b"".join(broker), exchange.from_broker)):
        routed = [route(piece) for piece in cut(said, cuts)]
        assert b"".join(part for onward, _ in routed for part in onward) == said
        assert not any(back for _, back in routed)


@given(CLIENT_SAYS, BROKER_SAYS, CUTS, CHANCES, CHANCES, st.integers(0, 99))
def test_how_the_stream_is_cut_changes_nothing(
    client: list[bytes], broker: list[bytes], cuts: list[int], loss_out: float, loss_in: float, seed: int
) -> None:
    whole, pieces = Scene(loss_out, loss_in, seed), Scene(loss_out, loss_in, seed)

    def said_by_client(scene: Scene, parts: list[bytes]) -> tuple[bytes, bytes]:
        routed = [scene.exchange.from_client(part) for part in parts]
        return b"".join(p for onward, _ in routed for p in onward), b"".join(p for _, back in routed for p in back)

    def said_by_broker(scene: Scene, parts: list[bytes]) -> tuple[bytes, Counter[int]]:
        routed = [scene.exchange.from_broker(part) for part in parts]
        return b"".join(p for onward, _ in routed for p in onward), permits([p for _, back in routed for p in back])

    assert said_by_client(whole, [b"".join(client)]) == said_by_client(pieces, cut(b"".join(client), cuts))
    assert said_by_broker(whole, [b"".join(broker)]) == said_by_broker(pieces, cut(b"".join(broker), cuts))
    assert whole.tally == pieces.tally


@given(st.data(), CHANCES, st.integers(0, 99))
def test_receipts_come_in_order_each_once_whatever_is_lost(data: st.DataObject, loss: float, seed: int) -> None:
    scene = Scene(loss_out=loss, seed=seed)
    next_sequence = dict.fromkeys(PRODUCERS, 0)
    at_broker: dict[int, list[int]] = {producer: [] for producer in PRODUCERS}
    came: dict[int, list[int]] = {producer: [] for producer in PRODUCERS}

    def deliver(pieces: Pieces) -> None:
        for producer, sequence in receipts(pieces):
            came[producer].append(sequence)

    def answer(producer: int) -> None:
        onward, back = scene.exchange.from_broker(receipt(producer, at_broker[producer].pop(0)))
        assert not back
        deliver(onward)

    for is_send, producer in data.draw(st.lists(st.tuples(st.booleans(), st.sampled_from(PRODUCERS)), max_size=60)):
        if is_send:
            onward, back = scene.exchange.from_client(send(producer, next_sequence[producer]))
            next_sequence[producer] += 1
            at_broker[producer].extend(numbers_of(whole)[2] for whole in commands(onward))
            deliver(back)
        elif at_broker[producer]:
            answer(producer)
        # What is receipted was sent before all that is not: a client hangs up on anything else.
        assert all(came[each] == list(range(len(came[each]))) for each in PRODUCERS)
    for producer in PRODUCERS:
        while at_broker[producer]:
            answer(producer)
        assert came[producer] == list(range(next_sequence[producer]))
    assert scene.tally.passed_sends + scene.tally.dropped_sends == sum(next_sequence.values())
    assert not scene.exchange._unreceipted, "nothing is remembered of what is settled"


def test_a_forged_receipt_looks_like_the_broker_s_own() -> None:
    onward, back = Scene(loss_out=1.0).exchange.from_client(send(7, 41, (3, 20), (6, 60)))
    assert not onward
    (whole,) = commands(back)
    assert type_of(whole) == SEND_RECEIPT
    body = dict(body_of(whole))
    place = body.pop(3)
    assert isinstance(place, bytes)
    assert list(decode(place)) == [(1, 0), (2, 0)]  # what a broker says of a non-persistent message
    assert body == {1: 7, 2: 41, 4: 60}


def test_a_batch_that_is_lost_counts_as_what_it_holds() -> None:
    scene = Scene(loss_out=1.0, loss_in=1.0)
    scene.exchange.from_client(send(7, 41, (3, 20)) + send(7, 61))
    assert scene.tally.dropped_sends == 21
    onward, back = scene.exchange.from_broker(message(4, 50) + message(5) + message(4))
    assert not onward
    assert permits(back) == {4: 51, 5: 1}
    assert scene.tally.dropped_messages == 52
    assert len(commands(back)) == 2, "one FLOW for each consumer"


def test_an_error_for_a_message_releases_the_receipts_behind_it() -> None:
    scene = Scene()
    scene.exchange.from_client(send(1, 0))
    scene.tally.loss_out = 1.0
    assert scene.exchange.from_client(send(1, 1)) == ([], [])
    refused = frame(SEND_ERROR, [(1, 1), (2, 0), (3, 9), (4, b"checksum")])
    onward, _ = scene.exchange.from_broker(refused)
    assert bytes(onward[0]) == refused
    assert receipts(onward) == [(1, 1)]


@pytest.mark.parametrize("opened_anew_by", ["client", "broker"])
def test_a_producer_that_is_opened_anew_starts_afresh(opened_anew_by: str) -> None:
    """The client sends again what had no receipt: an old forged one in between would come at the wrong time."""
    scene = Scene()
    scene.exchange.from_client(send(1, 0) + send(2, 0))
    scene.tally.loss_out = 1.0
    scene.exchange.from_client(send(1, 1) + send(2, 1))
    if opened_anew_by == "client":
        onward, _ = scene.exchange.from_client(frame(PRODUCER, [(1, b"topic"), (2, 1), (3, 5)]))
    else:
        onward, _ = scene.exchange.from_broker(frame(CLOSE_PRODUCER, [(1, 1), (2, 2**64 - 1)]))
    assert len(onward) == 1
    _, back = scene.exchange.from_client(send(1, 0))
    assert receipts(back) == [(1, 0)], "nothing is before it any more"
    onward, _ = scene.exchange.from_broker(receipt(2, 0))
    assert receipts(onward) == [(2, 0), (2, 1)], "the other producer's are still there"


def test_a_lookup_leads_to_the_proxy() -> None:
    answer: list[Field] = [(1, b"pulsar://broker:6650"), (2, b"pulsar+ssl://broker:6651"), (3, 1), (4, 9), (5, 1)]
    (rewritten,), _ = Scene().exchange.from_broker(frame(LOOKUP_RESPONSE, answer))
    whole = memoryview(rewritten)
    assert type_of(whole) == LOOKUP_RESPONSE
    assert body_of(whole) == [(1, URL.encode()), (3, 1), (4, 9), (5, 1)]


def test_a_lookup_that_failed_stays_as_it_is() -> None:
    failed = frame(LOOKUP_RESPONSE, [(3, 2), (4, 9), (6, 1), (7, b"no such namespace")])
    onward, _ = Scene().exchange.from_broker(failed)
    assert b"".join(onward) == failed


@given(st.integers(0, 127), st.binary(max_size=60), st.booleans())
def test_odd_commands_pass_or_are_an_error(type: int, rest: bytes, client: bool) -> None:
    exchange = Scene(loss_out=0.5, loss_in=0.5).exchange
    command = bytes([8, type]) + rest
    data = struct.pack(">II", len(command) + 4, len(command)) + command
    try:
        onward, _ = (exchange.from_client if client else exchange.from_broker)(data)
    except (ValueError, KeyError):
        return
    assert type in (SEND, MESSAGE, LOOKUP_RESPONSE) or b"".join(onward) == data
