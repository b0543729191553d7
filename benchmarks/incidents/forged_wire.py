"""Forged messages, with the names of properties and topics written out: the same for every version that is measured.

Newer versions exchange packets of sessions (docs/reference/wire.md), which have no properties; older ones refuse them.

Two layouts of topics are addressed. In the older one hello topics and the instances' own topics are in the response
namespace, and ids are ``PREFIX-NUMBER``. In the newer one both kinds of topics are in the request namespace, an announced
instance must answer a challenge, and ids are ``PREFIX-NUMBER-RANDOM``. Names that the broker lists are used beside the
literal ones, so that another rule for names changes nothing here.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

GENUINE = "web-1"
"""The genuine instance."""
FORGED = "bad-1"
"""The forged one: as long as the genuine one, so that a rule that counts characters gives a proper name."""
LATER = "7fffffffffffffff-ffffffff"
"""An incarnation that is later than any clock says."""
FEATURES = "repair,parts,cancel"
SETTLED = "fffffffffff"
"""A request number that no dispatcher reaches."""

REQUEST, CANCEL, GOAWAY, RESET, CLOSE = 2, 7, 11, 12, 16
"""Kinds of frames of a packet."""
STREAMS = range(256)
"""Numbers of requests that a forged packet names."""

REQUESTS = "non-persistent://tg/request/"
RESPONSES = "non-persistent://tg/response/"


@dataclass(frozen=True)
class Names:
    """Names of a service and a dispatcher that the forger knows: more than any attacker does.

    Attributes:
        topic: the service's short name, part of the names of all its topics.
        dispatcher: the dispatcher's name.
        listed: whole names of topics, as the broker lists them.
    """

    topic: str
    dispatcher: str
    listed: tuple[str, ...] = ()

    @property
    def request(self) -> str:
        """The service's request topic."""
        return REQUESTS + self.topic

    @property
    def announced(self) -> list[str]:
        """Topics where dispatchers may learn of instances, in both layouts."""
        return _once(
            (
                REQUESTS + f"dispatch-hello-{self.topic}",
                RESPONSES + f"dispatch-hello-{self.topic}",
                RESPONSES + f"dispatch-announce-{self.topic}",
            ),
            (
                each
                for each in self.listed
                if each.startswith(RESPONSES) and each != RESPONSES + self.topic and GENUINE not in each
            ),
        )

    @property
    def replies(self) -> list[str]:
        """Topics of the dispatcher's own."""
        return _once(
            (RESPONSES + f"dispatch-reply-{self.dispatcher}",),
            (each for each in self.listed if self.dispatcher in each),
        )

    @property
    def own(self) -> list[str]:
        """Topics of the genuine instance's own, in both layouts."""
        name = f"dispatch-control-{self.topic}-{GENUINE}"
        return _once((REQUESTS + name, RESPONSES + name), (each for each in self.listed if GENUINE in each))

    @property
    def forged(self) -> list[str]:
        """Topics that a forged instance announces as its own."""
        return [topic.replace(GENUINE, FORGED) for topic in self.own]


def _once(*groups: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(topic for group in groups for topic in group))


def message(topic: str, properties: Mapping[str, str], payload: str = "") -> dict[str, Any]:
    """One message for the forger."""
    return {"topic": topic, "properties": dict(properties), "payload": payload}


def announcements(
    names: Names,
    controls: Sequence[str],
    instance: str,
    *,
    incarnation: str = LATER,
    template: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """``here`` on every announcement topic, one instance for each topic of ``controls``.

    Args:
        instance: its name; further ones get a number.
        template: a genuine announcement that was read; its other properties are taken over.
    """
    made = []
    for number, control in enumerate(controls):
        properties = {
            "features": FEATURES,
            **(template or {}),
            "here": names.request,
            "instance": instance if number == 0 else f"{instance}-{number}",
            "incarnation": incarnation,
            "control": control,
        }
        properties.pop("refused", None)
        made += [message(topic, properties) for topic in dict.fromkeys((*names.announced, *names.replies))]
    return made


def many(names: Names, count: int, template: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """``count`` announcements of instances that do not exist, in both layouts."""
    return [
        each
        for number in range(count)
        for control in names.own
        for each in announcements(
            names, [control.replace(GENUINE, f"no-{number:03}")], f"no-{number:03}", template=template
        )
    ]


def later_life(names: Names, template: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """The genuine instance's name with a later incarnation, once for each topic that a forged instance could have."""
    return [each for control in names.forged for each in announcements(names, [control], GENUINE, template=template)]


def packets(names: Names, addresses: Iterable[int]) -> list[dict[str, Any]]:
    """Packets to the genuine instance that run, cancel and end the requests of the sessions with these addresses."""
    arguments = json.dumps({"user": "", "config": "{}", "arguments": json.dumps({"secret": "forged"})}).encode()
    made = []
    for address in addresses:
        for frames in (
            [(REQUEST, stream, 0, "digest", None, arguments) for stream in STREAMS],
            [(CANCEL, stream) for stream in STREAMS],
            [(GOAWAY, "draining")],
            [(RESET, address, "another")],
            [(CLOSE, "closed")],
        ):
            packet = msgspec.msgpack.encode((1, address, 0, 1_000_000, 0, 1, 0, 0, 48_000, frames))
            encoded = base64.b64encode(packet).decode()
            made += [{"topic": topic, "properties": {}, "packet": encoded} for topic in names.own]
    return made


def read_address(payload: bytes) -> int | None:
    """Return the address that a packet is for; None: ``payload`` is no packet."""
    try:
        version, address, *_ = msgspec.msgpack.decode(payload)
    except (msgspec.DecodeError, TypeError, ValueError):
        return None
    return address if version == 1 and isinstance(address, int) else None


def settled(names: Names, prefixes: Iterable[str]) -> list[dict[str, Any]]:
    """Requests under the ids of other dispatchers that are marked as no longer awaited."""
    payload = json.dumps({"user": "", "config": "{}", "arguments": json.dumps({"secret": "forged"})})
    return [
        message(
            topic,
            {
                "id": id,
                "reply-to": RESPONSES + "dispatch-reply-forged",
                "settled": SETTLED,
            },
            payload,
        )
        for prefix in prefixes
        for id in (f"{prefix}-{SETTLED}", f"{prefix}-{SETTLED}-0123456789abcdef")
        for topic in (names.request, *names.own)
    ]
