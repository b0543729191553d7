"""What a lossy proxy does to the commands of one client's connection; no sockets.

- SEND that is lost: the client gets a receipt as from the broker, once the receipts of all earlier messages have come. One
  that gets it too early hangs up.
- MESSAGE that is lost: the broker gets the consumer's permits for it back, or the consumer would starve.
- LOOKUP_RESPONSE: the broker's address in it becomes the proxy's, or clients would go around the proxy.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from typing import Protocol

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
    batch_size,
    body_of,
    encode,
    frame,
    numbers_of,
    type_of,
)

Pieces = list[memoryview | bytes]


class Tally(Protocol):
    """The chances, which may change at any time, and the counts. A batch counts as what it holds."""

    loss_out: float
    loss_in: float
    dropped_sends: int
    dropped_messages: int
    passed_sends: int
    passed_messages: int


class Exchange:
    """One client's connection, without the sockets: what came from one side, and what goes to which side for it."""

    def __init__(self, url: str, tally: Tally, dice_out: random.Random, dice_in: random.Random) -> None:
        self._url = url.encode()
        self._tally = tally
        self._dice_out, self._dice_in = dice_out, dice_in
        self._from_client, self._from_broker = Frames(), Frames()
        # By producer: what waits for its receipt, oldest first, and the forged receipts which have to wait behind it.
        self._unreceipted: dict[int, deque[tuple[int, bytes | None]]] = {}

    def from_client(self, data: bytes) -> tuple[Pieces, Pieces]:
        """What goes to the broker, and what goes back to the client."""
        onward: Pieces = []
        back: Pieces = []
        for whole in self._from_client.feed(data):
            type = type_of(whole)
            if type == SEND and self._loses(whole, back):
                continue
            if type == PRODUCER:
                self._unreceipted.pop(numbers_of(whole)[2], None)
            onward.append(whole)
        return onward, back

    def from_broker(self, data: bytes) -> tuple[Pieces, Pieces]:
        """What goes to the client, and what goes back to the broker."""
        onward: Pieces = []
        tally, permits = self._tally, dict[int, int]()
        for whole in self._from_broker.feed(data):
            type = type_of(whole)
            if type == MESSAGE:
                count = batch_size(whole)
                if self._dice_in.random() < tally.loss_in:
                    consumer = numbers_of(whole)[1]
                    permits[consumer] = permits.get(consumer, 0) + count
                    tally.dropped_messages += count
                    continue
                tally.passed_messages += count
            onward.append(self._through_proxy(whole) if type == LOOKUP_RESPONSE else whole)
            if type in (SEND_RECEIPT, SEND_ERROR):
                onward.extend(self._receipts_behind(numbers_of(whole)))
            elif type == CLOSE_PRODUCER:  # the broker's own wish: the client will send everything unreceipted again
                self._unreceipted.pop(numbers_of(whole)[1], None)
        return onward, [frame(FLOW, [(1, consumer), (2, count)]) for consumer, count in permits.items()]

    def _loses(self, whole: memoryview, back: Pieces) -> bool:
        send = numbers_of(whole)
        producer, sequence, count = send[1], send[2], send.get(3, 1)
        waiting = self._unreceipted.get(producer)
        if self._dice_out.random() >= self._tally.loss_out:
            self._tally.passed_sends += count
            if waiting is None:
                waiting = self._unreceipted[producer] = deque()
            waiting.append((sequence, None))
            return False
        self._tally.dropped_sends += count
        receipt: list[Field] = [(1, producer), (2, sequence), (3, encode([(1, 0), (2, 0)]))]
        if 6 in send:
            receipt.append((4, send[6]))  # the last sequence id of a batch
        forged = frame(SEND_RECEIPT, receipt)
        if waiting is None:
            back.append(forged)
        else:
            waiting.append((sequence, forged))
        return True

    def _receipts_behind(self, receipt: dict[int, int]) -> Iterator[bytes]:
        producer = receipt[1]
        waiting = self._unreceipted.get(producer)
        if waiting is None or waiting[0][0] != receipt[2]:
            return
        waiting.popleft()
        while waiting and (forged := waiting[0][1]) is not None:
            yield forged
            waiting.popleft()
        if not waiting:
            del self._unreceipted[producer]

    def _through_proxy(self, whole: memoryview) -> bytes:
        # Not the field proxy_through_service_url: with that, a client makes a second connection for its topics.
        response = [field for field in body_of(whole) if field[0] != 2]  # 2: the address for TLS
        return frame(
            LOOKUP_RESPONSE, [(1, self._url) if number == 1 else (number, value) for number, value in response]
        )
