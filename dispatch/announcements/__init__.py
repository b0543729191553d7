"""The messages by which services announce themselves: format, parts, digest and signatures. Pure.

JSON of at most 256 KiB on one topic. ``here`` announces an instance of a service, ``bye`` its end. With ``tools`` the
message has the descriptors, in several parts if they are large; a heartbeat has only their digest. Dispatchers ask with
``who`` on a topic of its own, so that an instance does not receive the announcements of all others.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import os
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec

from dispatch._internal import NamedFields, check_instance
from dispatch.messaging.wire import TopicError, TopicName

DEFAULT_TOPIC: Final = "notify:tg:tool-descriptors"
"""Where services announce themselves: the topic that TrustGraph's specification names."""
TOPIC_VARIABLE: Final = "DISPATCH_ANNOUNCEMENTS"
"""The environment variable with the topic of the announcements, or ``off``."""
MAX_BYTES: Final = 256 * 1024
"""Bytes of a message: so small that others pass in between, and far below the limit of any broker."""
MAX_PARTS: Final = 32
"""Parts of the descriptors of a service: 8 MiB."""
MAX_TEXT: Final = 200
"""Characters of an id, an incarnation, a digest or a label."""
MAX_LABELS: Final = 32
TTL_S: Final = 15.0
"""Seconds without an announcement after which an instance is gone: three heartbeats."""
MAX_TTL_S: Final = 300.0
MAX_SIGNATURES: Final = 2
"""Signatures of a message: with the former key and the new one while keys are replaced."""

HERE, BYE, WHO = "here", "bye", "who"

Text = Annotated[str, msgspec.Meta(max_length=MAX_TEXT)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_TEXT)]


class MalformedAnnouncementError(ValueError):
    """A message that is no announcement; ``str()`` says why."""


class ServiceRef(msgspec.Struct, frozen=True, rename="kebab"):
    """What each announcement says about its service.

    Attributes:
        id: of the service.
        request_queue, response_queue: its topics.
        version: None: not declared.
    """

    id: str
    request_queue: str
    response_queue: str
    version: str | None = None


class InstanceInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """The announced instance.

    Attributes:
        id: unique among the instances of the service.
        incarnation: of this run; a later run has a greater text.
        version: of the service; None: not declared.
        weight: share of the calls, relative to other instances.
        labels: for people and tools, such as a zone.
    """

    id: Name
    incarnation: Name
    version: Text | None = None
    weight: float = 1.0
    labels: Annotated[dict[Text, Text], msgspec.Meta(max_length=MAX_LABELS)] = {}


class Announcement(msgspec.Struct, frozen=True, omit_defaults=True):
    """An announcement as it arrives; ``service`` and ``tools`` are decoded when they are used.

    Attributes:
        announce: ``here`` or ``bye``.
        service: the descriptor, or its id, version and topics only.
        instance: that announces itself.
        sequence: increases with each message of an incarnation.
        ttl: seconds until the next announcement, at most.
        digest: the same for equal descriptors.
        tools: the tools, or a part of them; missing: a heartbeat.
        part: number of the part from 1, and of all parts.
        stats: load and counters, in answers to ``who`` with ``stats``.
        secret: in ``bye``, where the incarnation ends with its hash: see :func:`hash_secret`.
        signatures: HMAC-SHA-256 by key id, in hexadecimal digits.
    """

    announce: Literal["here", "bye"]
    service: msgspec.Raw
    instance: InstanceInfo
    sequence: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    digest: Name
    ttl: Annotated[float, msgspec.Meta(gt=0)] = TTL_S
    tools: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    part: tuple[int, int] = (1, 1)
    stats: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    secret: Text = ""
    signatures: dict[str, str] | msgspec.UnsetType = msgspec.UNSET

    def read_ref(self) -> ServiceRef:
        """Return id, version and topics of the service.

        Raises:
            MalformedAnnouncementError: it has none.
        """
        return _decode(_ref_decoder, self.service)

    def read_service(self) -> dict[str, Any]:
        """Return the descriptor of the service.

        Raises:
            MalformedAnnouncementError: it is not an object.
        """
        return _decode(_object_decoder, self.service)

    def read_tools(self) -> list[dict[str, Any]]:
        """Return the descriptors of the tools; none in a heartbeat.

        Raises:
            MalformedAnnouncementError: it is not a list of objects.
        """
        return [] if self.tools is msgspec.UNSET else _decode(_list_decoder, self.tools)


class Question(msgspec.Struct, frozen=True, omit_defaults=True):
    """``who``: asks services to announce themselves.

    Attributes:
        announce: ``who``.
        service: id of the service that is asked; empty: all.
        instance: id of the instance that is asked; empty: all.
        part: of the descriptors, from 1; 0: a heartbeat.
        stats: with load and counters.
    """

    announce: str = WHO
    service: str = ""
    instance: str = ""
    part: int = 0
    stats: bool = False

    def encode(self) -> bytes:
        """Return the payload."""
        # 'announce' has its default, and must be written.
        return _encoder.encode({"announce": WHO, **msgspec.to_builtins(self)})


_encoder: Final = msgspec.json.Encoder()
_sorting_encoder: Final = msgspec.json.Encoder(order="sorted")
_announcement_decoder: Final = msgspec.json.Decoder(Announcement)
_question_decoder: Final = msgspec.json.Decoder(Question)
_ref_decoder: Final = msgspec.json.Decoder(ServiceRef)
_object_decoder: Final = msgspec.json.Decoder(dict[str, Any])
_list_decoder: Final = msgspec.json.Decoder(list[dict[str, Any]])


T = TypeVar("T")


def _decode(decoder: msgspec.json.Decoder[T], payload: bytes | msgspec.Raw) -> T:
    try:
        return decoder.decode(payload)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise MalformedAnnouncementError(str(error)) from None


def decode_announcement(payload: bytes) -> Announcement:
    """Return the announcement in ``payload``.

    Raises:
        MalformedAnnouncementError: it has none, or one with values out of range.
    """
    if len(payload) > MAX_BYTES:
        raise MalformedAnnouncementError(f"{len(payload):,} bytes, the limit is {MAX_BYTES:,}")
    found = _decode(_announcement_decoder, payload)
    if not found.instance.id.isprintable():
        raise MalformedAnnouncementError("the id of the instance is not printable")
    number, count = found.part
    if not 1 <= number <= count <= MAX_PARTS:
        raise MalformedAnnouncementError("the part is out of range")
    return found


def decode_question(payload: bytes) -> Question | None:
    """Return the question in ``payload``; None: it has none."""
    if len(payload) > MAX_BYTES:
        return None
    try:
        question = _decode(_question_decoder, payload)
    except MalformedAnnouncementError:
        return None
    return question if question.announce == WHO else None


def question_topic(topic: str) -> str:
    """Return the topic of the questions for the announcements on ``topic``. For the notify namespace, where agents may only
    consume, it is in the request namespace. It is never persistent: an old question needs no answer."""
    name = TopicName.parse(topic)
    namespace = "request" if name.namespace == "notify" else name.namespace
    return str(TopicName(False, name.tenant, namespace, f"{name.name}-who"))


def admin_topic(topic: str) -> str:
    """Return the topic on which the admin endpoints of the processes are announced that use ``topic`` for their tools."""
    name = TopicName.parse(topic)
    return str(TopicName(False, name.tenant, name.namespace, f"{name.name}-admin"))


def read_topic() -> str | None:
    """Return the topic of :data:`TOPIC_VARIABLE`, else :data:`DEFAULT_TOPIC`; None: nothing is to be announced.

    Raises:
        TopicError: the variable has no topic name.
    """
    topic = os.environ.get(TOPIC_VARIABLE, "").strip() or DEFAULT_TOPIC
    try:
        return None if topic == "off" else str(TopicName.parse(topic))
    except TopicError as error:
        raise TopicError(f"{TOPIC_VARIABLE}: {error.problem}", error.fix) from None


def hash_secret(secret: str) -> str:
    """Return the hash by which a ``bye`` without a signature is known as that of the process itself."""
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()[:32]


# Digests and signatures are over the JSON with sorted keys and without blanks.


def digest_descriptors(service: Mapping[str, Any], tools: Sequence[Mapping[str, Any]]) -> str:
    """Return the digest of descriptors: the same for equal ones."""
    return hashlib.sha256(_sorting_encoder.encode([service, tools])).hexdigest()[:32]


def sign(message: Mapping[str, Any], keys: Mapping[str, bytes]) -> dict[str, str]:
    """Return the signatures of ``message`` by key id."""
    text = _sorting_encoder.encode(message)
    return {id: hmac.digest(key, text, "sha256").hex() for id, key in keys.items()}


def is_signed(payload: bytes, keys: Mapping[str, bytes]) -> bool:
    """Return whether the message in ``payload`` has a valid signature with one of ``keys``."""
    if not keys or b'"signatures"' not in payload:
        return False
    try:
        message = _decode(_object_decoder, payload)
        signatures = message.pop("signatures", None)
        if not isinstance(signatures, dict) or len(signatures) > MAX_SIGNATURES:
            return False
        text = _sorting_encoder.encode(message)
    except (MalformedAnnouncementError, RecursionError):
        return False
    for id, signature in signatures.items():
        key = keys.get(id)
        is_text = isinstance(signature, str) and signature.isascii()
        if key is not None and is_text and hmac.compare_digest(hmac.digest(key, text, "sha256").hex(), signature):
            return True
    return False


# What a service publishes.


class Announce(msgspec.Struct, frozen=True, kw_only=True, metaclass=NamedFields):
    """How a :class:`~dispatch.ToolServer` announces itself.

    Attributes:
        topic: of the announcements; a whole name or TrustGraph's short form.
        keys: secrets by key id, at most two, with which announcements are signed.
        labels: of the instance, such as a zone.
        weight: of the instance, above 0: its share of the calls, relative to other instances.

    Raises:
        TypeError, ValueError: a value is of another type, or out of range.
    """

    topic: str = DEFAULT_TOPIC
    keys: Mapping[str, bytes] = {}
    labels: Mapping[str, str] = {}
    weight: float = 1.0

    def __post_init__(self) -> None:
        check_instance("topic", self.topic, str, f"the name of a topic, such as '{DEFAULT_TOPIC}'")
        TopicName.parse(self.topic)
        check_keys(self.keys)
        if len(self.keys) > MAX_SIGNATURES:
            raise ValueError(
                f"{len(self.keys)} keys sign an announcement. Fix: give at most {MAX_SIGNATURES}, the old and the new one."
            )
        check_instance("labels", self.labels, Mapping, "texts by their names, such as {'zone': 'eu'}")
        for name, label in self.labels.items():
            check_instance(f"the label {name!r:.80}", label, str, "a text")
        check_instance("weight", self.weight, (int, float), "a number above 0")
        if not 0 < self.weight < math.inf:
            raise ValueError(f"weight must be a number above 0, not {self.weight}")


MIN_KEY_BYTES: Final = 16


def check_keys(keys: Mapping[str, bytes]) -> None:
    """Check secrets by key id.

    Raises:
        TypeError, ValueError: one is not bytes, or too short.
    """
    check_instance("keys", keys, Mapping, "secrets by their ids, such as {'2026': b'…'}")
    for id, key in keys.items():
        if not isinstance(key, bytes):
            raise TypeError(f"the key '{id}' is {type(key).__name__}, not bytes. Fix: b'…', or text.encode().")
        if len(key) < MIN_KEY_BYTES:
            raise ValueError(
                f"the key '{id}' has {len(key)} bytes. Fix: use at least {MIN_KEY_BYTES}, such as secrets.token_bytes(32)."
            )


class DescriptorParts:
    """The descriptors of one service as its instances announce them.

    Args:
        service: the descriptor of the service.
        tools: those of its tools.

    Raises:
        ValueError: a descriptor is too large, or not JSON.
    """

    def __init__(self, service: Mapping[str, Any], tools: Sequence[Mapping[str, Any]]) -> None:
        self.service = dict(service)
        self.tools = [dict(tool) for tool in tools]
        try:
            self.digest = digest_descriptors(self.service, self.tools)
        except (TypeError, RecursionError) as error:
            raise ValueError(f"the descriptors of '{service.get('id')}' are not JSON: {error}") from None
        keys = ("id", "version", "request-queue", "response-queue")
        self.ref = {key: self.service[key] for key in keys if self.service.get(key) is not None}
        self.parts = self._split(MAX_BYTES - _ENVELOPE_BYTES - len(_encoder.encode(self.service)))

    def _split(self, room: int) -> list[list[dict[str, Any]]]:
        parts: list[list[dict[str, Any]]] = [[]]
        used = 0
        for tool in self.tools:
            size = len(_encoder.encode(tool)) + 1
            if size > room:
                raise ValueError(
                    f"the descriptors of the service '{self.service.get('id')}' and its tool '{tool.get('name')}' have more "
                    f"than {MAX_BYTES:,} bytes. Fix: shorten the schema of the tool."
                )
            if parts[-1] and used + size > room:
                parts.append([])
                used = 0
            parts[-1].append(tool)
            used += size
        if len(parts) > MAX_PARTS:
            raise ValueError(
                f"the descriptors of the service '{self.service.get('id')}' have more than {MAX_PARTS * MAX_BYTES:,} bytes. "
                "Fix: divide its tools among several services."
            )
        return parts


_ENVELOPE_BYTES: Final = 16 * 1024
"""Bytes of a message besides the descriptors, at most: ids, labels, statistics, signatures."""


class AnnouncementWriter:
    """Writes the announcements of one instance.

    Args:
        instance: that announces itself.
        keys: of signatures.
        ttl: seconds until the next announcement, at most.
    """

    def __init__(self, instance: InstanceInfo, keys: Mapping[str, bytes], ttl: float = TTL_S) -> None:
        self._instance = instance
        self._keys = keys
        self._ttl = ttl
        self._sequence = 0

    def write(
        self,
        announce: str,
        descriptors: DescriptorParts,
        *,
        part: int = 0,
        stats: Mapping[str, Any] | None = None,
        secret: str | None = None,
    ) -> bytes:
        """Return one message.

        Args:
            part: of the descriptors, from 1; 0: a heartbeat.
            stats: load and counters.
            secret: see :class:`Announcement`.
        """
        self._sequence += 1
        message: dict[str, Any] = {
            "announce": announce,
            "service": descriptors.service if part else descriptors.ref,
            "instance": msgspec.to_builtins(self._instance),
            "sequence": self._sequence,
            "ttl": self._ttl,
            "digest": descriptors.digest,
        }
        if part:
            message["tools"] = descriptors.parts[part - 1]
            message["part"] = (part, len(descriptors.parts))
        if stats is not None:
            message["stats"] = dict(stats)
        if secret is not None:
            message["secret"] = secret
        if self._keys:
            message["signatures"] = sign(message, self._keys)
        return _encoder.encode(message)

    def write_all(self, descriptors: DescriptorParts) -> list[bytes]:
        """Return the messages with all descriptors."""
        return [self.write(HERE, descriptors, part=number) for number in range(1, len(descriptors.parts) + 1)]
