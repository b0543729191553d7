"""A bare pulsar-client that reads every permitted topic and sends forged messages. It imports nothing of ``dispatch``."""

from __future__ import annotations

import base64
import json
import os
import re
import secrets
import threading
from typing import Any

import pulsar

from benchmarks.incidents.forged_wire import read_address
from benchmarks.workers.channel import Channel

SECRET = re.compile(rb"secret-[0-9a-f]+-\d+")
"""The arguments that other agents send."""
RECEIVER_QUEUE = 5_000


class Forger:
    """One connection with one token. Listeners run on threads of pulsar-client."""

    def __init__(self, url: str, token: str | None) -> None:
        options: dict[str, Any] = {} if token is None else {"authentication": pulsar.AuthenticationToken(token)}
        self._client = pulsar.Client(
            url, operation_timeout_seconds=10, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull), **options
        )
        self._lock = threading.Lock()
        self._producers: dict[str, pulsar.Producer | None] = {}
        self._consumers: dict[str, pulsar.Consumer] = {}
        self._fakes: set[str] = set()
        self.secrets: set[bytes] = set()
        self.answers = 0
        """Replies to other agents that were read."""
        self.requests = 0
        """Requests that came to topics of forged instances."""
        self.prefixes: set[str] = set()
        """The first parts of the ids of other agents' requests."""
        self.addresses: set[int] = set()
        """The addresses of other agents' sessions."""
        self.here: dict[str, str] = {}
        """The last genuine announcement."""

    def listen(self, topic: str, *, fake: bool = False) -> bool:
        """Subscribe to ``topic``; ``fake``: answer requests there with forged answers. False: the broker refused."""
        if fake:
            self._fakes.add(topic)
        if topic in self._consumers:
            return True
        try:
            self._consumers[topic] = self._client.subscribe(
                topic,
                f"forger-{secrets.token_hex(4)}",
                message_listener=lambda _consumer, message: self._on_message(topic, message),
                receiver_queue_size=RECEIVER_QUEUE,
            )
        except pulsar.PulsarException:
            return False
        return True

    def _on_message(self, topic: str, message: pulsar.Message) -> None:
        payload, properties = message.data(), message.properties()
        address = None if properties else read_address(payload)
        with self._lock:
            if address:
                self.addresses.add(address)
            self.secrets.update(SECRET.findall(payload))
            prefix, dash, _ = properties.get("id", "").partition("-")
            if dash and "forged" not in prefix:
                self.prefixes.add(prefix)
            if "here" in properties:
                self.here = dict(properties)
            if b'"response"' in payload:
                self.answers += 1
            if topic in self._fakes and "id" in properties and payload:
                self.requests += 1
                if "reply-to" in properties:
                    self._answer(properties)

    def _answer(self, request: dict[str, str]) -> None:
        payload = json.dumps({"error": None, "response": "forged", "end_of_stream": True}).encode()
        threading.Thread(  # a producer cannot be created from within a listener
            target=self.send, args=(request["reply-to"], {"id": request["id"]}, payload), daemon=True
        ).start()

    def send(self, topic: str, properties: dict[str, str], payload: bytes) -> bool:
        """Produce one message. False: the broker refused."""
        if topic not in self._producers:
            try:
                self._producers[topic] = self._client.create_producer(topic, send_timeout_millis=5_000)
            except pulsar.PulsarException:
                self._producers[topic] = None
        producer = self._producers[topic]
        if producer is None:
            return False
        try:
            producer.send(payload, properties=properties)
        except pulsar.PulsarException:
            return False
        return True

    def close(self) -> None:
        """Disconnect."""
        self._client.close()


def payload_of(message: dict[str, Any]) -> bytes:
    """Return the payload of a message of the driver: a text, or a packet in base64."""
    return base64.b64decode(message["packet"]) if "packet" in message else message["payload"].encode()


def main() -> None:
    """Execute the driver's commands."""
    channel = Channel()
    spec = channel.first()
    forger = Forger(spec["url"], spec.get("token"))
    channel.ready()
    while (command := channel.read()) is not None:
        match command["do"]:
            case "listen":
                opened = [topic for topic in command["topics"] if forger.listen(topic, fake=command.get("fake", False))]
                channel.say({"opened": opened})
            case "send":
                sent = [forger.send(m["topic"], m["properties"], payload_of(m)) for m in command["messages"]]
                channel.say({"taken": sum(sent), "refused": len(sent) - sum(sent)})
            case "seen":
                channel.say(
                    {
                        "secrets": len(forger.secrets),
                        "answers": forger.answers,
                        "requests": forger.requests,
                        "prefixes": sorted(forger.prefixes),
                        "addresses": sorted(forger.addresses),
                        "here": forger.here,
                    }
                )
    forger.close()


if __name__ == "__main__":
    main()
