"""A peer made with pulsar-client alone: it shows, and sends, the very bytes and properties that travel."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pulsar
import pulsar.asyncio

from tests.integration.interop.peers import TIMEOUT_S, request_topic, response_topic


class Arrived(NamedTuple):
    """A message: its payload's JSON, and its properties."""

    body: Any
    properties: dict[str, str]


class Peer:
    """Sends to one topic and receives from another. Made by :func:`caller` and :func:`service`."""

    def __init__(self, producer: Any, consumer: Any) -> None:
        self._producer = producer
        self._consumer = consumer

    async def send(self, body: Any, **properties: str) -> None:
        """Send ``body`` as JSON."""
        await self._producer.send(json.dumps(body).encode(), properties=properties)

    async def receive(self) -> Arrived:
        """The next message."""
        message = await asyncio.wait_for(self._consumer.receive(), TIMEOUT_S)
        await self._consumer.acknowledge(message)
        return Arrived(json.loads(message.data()), message.properties())


@contextlib.asynccontextmanager
async def caller(url: str, topic: str) -> AsyncIterator[Peer]:
    """Sends requests, and sees every answer on the response topic."""
    async with _peer(url, request_topic(topic), response_topic(topic)) as peer:
        yield peer


@contextlib.asynccontextmanager
async def service(url: str, topic: str) -> AsyncIterator[Peer]:
    """Receives requests, and answers on the response topic: that is all it knows."""
    async with _peer(url, response_topic(topic), request_topic(topic)) as peer:
        yield peer


@contextlib.asynccontextmanager
async def _peer(url: str, sends_to: str, listens_to: str) -> AsyncIterator[Peer]:
    client = pulsar.asyncio.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        producer = await client.create_producer(sends_to)
        consumer = await client.subscribe(listens_to, "by-hand")
        yield Peer(producer, consumer)
    finally:
        await client.close()
