"""The announced services: which instances are alive, and which descriptors are in force. Pure: no input or output, no clock.

Every producer to the topic can send an announcement, so an unsigned one is a claim: it changes nothing until the instance
has answered a question on a topic of the service's request namespace, which only services consume. The answer has the
descriptors, so that a forger cannot change these either. A claim about an instance that is known and unchanged extends its
life, and costs no question. What is signed with a trusted key is believed at once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, Final, Literal, NamedTuple

import msgspec

from dispatch._internal import excerpt, remember
from dispatch.announcements import (
    BYE,
    MAX_PARTS,
    MAX_TTL_S,
    Announcement,
    InstanceInfo,
    MalformedAnnouncementError,
    ServiceRef,
    decode_announcement,
    is_signed,
)
from dispatch.announcements.trust import Trust, UntrustedError, read_ref
from dispatch.catalog.items import Item, Refused
from dispatch.documents import Problem

GONE_S: Final = 60.0
"""Seconds for which the tools of a service stay in the catalogue after its last instance: while it restarts, calls fail as
``no-instance``, with the time to try again."""
MIN_WEIGHT: Final = 0.01
MAX_WEIGHT: Final = 100.0
"""Bounds of an announced weight: no instance gets all calls of a service by its own word."""
MAX_ASKED: Final = 64
"""Questions in flight: each opens a topic, so that a flood of claims must not open them without a limit."""
MAX_WAITING: Final = 1_024
"""Claims that wait for a question; the oldest gives way. A genuine instance announces itself again."""
ASK_AGAIN_S: Final = 1.0
"""Seconds until an instance is asked again."""
MAX_REMEMBERED: Final = 4_096
"""Instances whose last question is remembered, ids of services that were checked, reports, descriptors in parts."""
REPORT_EVERY_S: Final = 60.0
"""Seconds between two reports of one kind about a service."""
LATE_TICK_S: Final = 2.0
"""Seconds between two ticks beyond which the process was suspended, or its event loop blocked: nothing ages meanwhile."""
MAX_QUESTIONS: Final = 2 * MAX_PARTS
"""Questions to an instance after one of its announcements."""
MAX_ASSEMBLIES: Final = 16
"""Sets of signed descriptors in parts that are being received."""

Key = tuple[str, str | None]
"""Id and version of a service."""
Reason = Literal["new", "bye", "doubt"]


class Received(NamedTuple):
    """The parts of descriptors that were received so far.

    Attributes:
        tools: of these parts.
        digest: of the descriptors.
        is_signed: all of these parts were signed.
    """

    tools: list[dict[str, Any]]
    digest: str
    is_signed: bool


NOTHING: Final = Received([], "", True)


class Inquiry(msgspec.Struct, eq=False):
    """A question to an instance.

    Attributes:
        request_queue, response_queue: of the service.
        instance: that is asked.
        reason: ``bye``: without an answer the instance is gone.
        key: the service that the claim is about.
        part: of the descriptors; 0: a heartbeat is enough.
        received: the parts before it.
        count: of the questions to the instance, this one included.
    """

    request_queue: str
    response_queue: str
    instance: str
    reason: Reason
    key: Key
    part: int = 1
    received: Received = NOTHING
    count: int = 1


class AnnouncedInstance(msgspec.Struct, eq=False):
    """An instance of a service.

    Attributes:
        info: as it announced itself.
        sequence: of its last message.
        heard_at: when that arrived, in seconds of life (:meth:`AnnouncementTable.tick`).
        ttl: seconds until it must be heard again.
        digest: of its descriptors.
        is_proved: it has answered a question, or signs its announcements.
        is_signed: it signs them: unsigned ones are ignored.
    """

    info: InstanceInfo
    sequence: int
    heard_at: float
    ttl: float
    digest: str
    is_proved: bool
    is_signed: bool = False


class AnnouncedService(msgspec.Struct, eq=False):
    """A version of a service.

    Attributes:
        ref: its id, version and topics.
        digest: of the descriptors in force.
        is_signed: these were signed.
        items: made of these.
        instances: by id.
        gone_at: when the last instance had gone, in seconds of life; None: there are instances.
        refused: items that say so, by the instances that are held back.
    """

    ref: ServiceRef
    digest: str
    is_signed: bool
    items: tuple[Item, ...]
    instances: dict[str, AnnouncedInstance] = {}
    gone_at: float | None = None
    refused: dict[str, Item] = {}

    def has_proof(self, without: str = "") -> bool:
        """Return whether an instance has proved the descriptors in force, not counting the one with the id ``without``."""
        return any(
            each.is_proved and each.digest == self.digest for id, each in self.instances.items() if id != without
        )

    @property
    def conflicting(self) -> tuple[AnnouncedInstance, ...]:
        """Proved instances with other descriptors, which are held back."""
        return tuple(each for each in self.instances.values() if each.is_proved and each.digest != self.digest)


class AnnouncementTable:
    """The announced services of one source.

    Args:
        trust: with namespaces.
        source: id of the source, for messages.
        namespace: of the items.

    Attributes:
        services: by id and version.
        version: increases when :meth:`items` changes.
        refused: counts refused messages by reason.
        shares: by request topic and instance, where it is not 1: the weight of a proved instance, 0 while it is held back.
    """

    def __init__(self, trust: Trust, *, source: str = "announced", namespace: str = "") -> None:
        self._trust = trust
        self._source = source
        self._namespace = namespace
        self.services: dict[Key, AnnouncedService] = {}
        self.version = 0
        self.refused = {"malformed": 0, "untrusted": 0, "unsigned": 0, "limit": 0}
        self.shares: dict[str, dict[str, float]] = {}
        self._changed_shares: set[str] = set()
        self._waiting: OrderedDict[tuple[str, str], Inquiry] = OrderedDict()
        self._early: OrderedDict[tuple[str, str], Inquiry] = OrderedDict()
        """Questions to instances that were asked within the last second."""
        self._asked: dict[tuple[str, str], Inquiry] = {}
        self._asked_at: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._checked: OrderedDict[ServiceRef, str] = OrderedDict()
        """Why a service is outside the trust; empty: it is not."""
        self._assemblies: OrderedDict[tuple[str, str, str], dict[int, list[dict[str, Any]]]] = OrderedDict()
        self._reports: list[str] = []
        self._reported_at: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._life = 0.0
        self._ticked_at: float | None = None
        self._is_connected = True

    # -- time ---------------------------------------------------------------------------------------------------

    def tick(self, now: float, *, is_connected: bool = True) -> None:
        """Remove instances that are silent, and services that are gone. Called about once a second, and when the connection
        is lost or has returned; nothing ages while it is down.

        Args:
            now: seconds on a monotonic clock.
            is_connected: whether announcements arrive at present.
        """
        if self._ticked_at is not None and self._is_connected:
            self._life += min(max(now - self._ticked_at, 0.0), LATE_TICK_S)
        self._ticked_at, self._is_connected = now, is_connected
        for target, inquiry in list(self._early.items()):
            if self._life >= self._asked_at.get(target, -ASK_AGAIN_S) + ASK_AGAIN_S:
                del self._early[target]
                self._waiting.setdefault(target, inquiry)
        for key, service in list(self.services.items()):
            for instance in list(service.instances.values()):
                if instance.heard_at + instance.ttl < self._life:
                    self._remove(service, instance)
            if service.gone_at is not None and service.gone_at + GONE_S <= self._life:
                del self.services[key]
                self.version += 1

    # -- announcements ------------------------------------------------------------------------------------------

    def receive(self, payload: bytes) -> None:
        """Process a message of the topic. Never raises."""
        try:
            message = decode_announcement(payload)
            ref = message.read_ref()
        except MalformedAnnouncementError:
            self.refused["malformed"] += 1
            return
        if not self._is_trusted(ref):
            self.refused["untrusted"] += 1
            return
        has_signature = message.signatures is not msgspec.UNSET and is_signed(payload, self._trust.keys)
        if self._trust.signed_only and not has_signature:
            self.refused["unsigned"] += 1
            self._report("unsigned", ref.id, "its announcements have no valid signature")
            return
        service = self.services.get((ref.id, ref.version))
        instance = None if service is None else service.instances.get(message.instance.id)
        if instance is not None and message.instance.incarnation < instance.info.incarnation:
            return
        is_known = instance is not None and message.instance.incarnation == instance.info.incarnation
        if instance is not None and instance.is_signed and not has_signature:
            return
        if is_known and instance is not None and message.sequence <= instance.sequence:
            # A late message; or another one was forged with a high sequence, and the genuine ones look late.
            if not has_signature and self._life - instance.heard_at > instance.ttl / 3:
                self._inquire(ref, message.instance.id, "doubt")
            return
        if message.announce == BYE:
            if service is not None and instance is not None and has_signature:
                self._remove(service, instance)
            elif instance is not None:
                self._inquire(ref, message.instance.id, "bye")
        elif has_signature:
            self._receive_signed(ref, message, service)
        elif is_known and instance is not None and instance.digest == message.digest:
            self._refresh(instance, message)
        elif instance is None and service is not None and self._can_claim(service, ref, message):
            if len(service.instances) >= self._trust.max_instances:
                self.refused["limit"] += 1
            else:
                self._add(service, message, is_proved=False)
        else:
            self._inquire(ref, message.instance.id, "new")

    def _is_trusted(self, ref: ServiceRef) -> bool:
        problem = self._checked.get(ref)
        if problem is None:
            try:
                self._trust.check_service(ref)
                problem = ""
            except UntrustedError as error:
                problem = str(error)
            remember(self._checked, ref, problem, MAX_REMEMBERED)
        if problem:
            self._report("untrusted", ref.id, problem)
        return not problem

    def _can_claim(self, service: AnnouncedService, ref: ServiceRef, message: Announcement) -> bool:
        """Whether another instance of a service that is alive needs no proof: it has the same topics and descriptors, and
        wants no other share of the calls."""
        return (
            service.ref == ref
            and service.digest == message.digest
            and message.instance.weight == 1.0
            and service.has_proof()
        )

    def _refresh(self, instance: AnnouncedInstance, message: Announcement) -> None:
        instance.sequence = message.sequence
        instance.heard_at = self._life
        instance.ttl = min(message.ttl, MAX_TTL_S)

    def _add(
        self, service: AnnouncedService, message: Announcement, *, is_proved: bool, is_signed: bool = False
    ) -> None:
        ttl = min(message.ttl, MAX_TTL_S)
        service.instances[message.instance.id] = AnnouncedInstance(
            message.instance, message.sequence, self._life, ttl, message.digest, is_proved, is_signed
        )
        service.gone_at = None
        self._share(service, message.instance.id)

    def _receive_signed(self, ref: ServiceRef, message: Announcement, service: AnnouncedService | None) -> None:
        if service is not None and service.digest == message.digest and service.is_signed:
            self._accept(ref, message, None, is_signed=True)
        elif message.tools is not msgspec.UNSET:
            tools = self._assemble(ref, message)
            if tools is not None:
                self._accept(ref, message, tools, is_signed=True)
        else:
            self._inquire(ref, message.instance.id, "new")

    def _assemble(self, ref: ServiceRef, message: Announcement) -> list[dict[str, Any]] | None:
        """Return all tools of signed descriptors once their parts are there."""
        number, count = message.part
        try:
            tools = message.read_tools()
        except MalformedAnnouncementError:
            self.refused["malformed"] += 1
            return None
        if count == 1:
            return tools
        key = ref.request_queue, message.instance.id, message.digest
        parts = self._assemblies.setdefault(key, {})
        while len(self._assemblies) > MAX_ASSEMBLIES:
            self._assemblies.popitem(last=False)
        parts[number] = tools
        if any(index not in parts for index in range(1, count + 1)):
            return None
        self._assemblies.pop(key, None)
        return [tool for index in range(1, count + 1) for tool in parts[index]]

    # -- questions ----------------------------------------------------------------------------------------------

    def _inquire(self, ref: ServiceRef, instance: str, reason: Reason) -> None:
        target = ref.request_queue, instance
        if target in self._asked or target in self._waiting:
            return
        service = self.services.get((ref.id, ref.version))
        part = 0 if service is not None and reason != "new" else 1
        inquiry = Inquiry(ref.request_queue, ref.response_queue, instance, reason, (ref.id, ref.version), part)
        is_early = self._life < self._asked_at.get(target, -ASK_AGAIN_S) + ASK_AGAIN_S
        remember(self._early if is_early else self._waiting, target, inquiry, MAX_WAITING)

    def pop_inquiries(self) -> Iterator[Inquiry]:
        """Yield the questions that are to be sent now. Each ends with :meth:`receive_answer` or :meth:`abandon`.

        The newest claim is first: a service that announces itself does not wait for the questions about forged ones.
        """
        while self._waiting and len(self._asked) < MAX_ASKED:
            target, inquiry = self._waiting.popitem()
            self._asked[target] = inquiry
            remember(self._asked_at, target, self._life, MAX_REMEMBERED)
            yield inquiry

    @property
    def is_asking(self) -> bool:
        """Whether a question is to be sent, or has no answer yet."""
        return bool(self._waiting or self._asked)

    def abandon(self, inquiry: Inquiry) -> None:
        """Forget a question that could not be asked: that there is no answer says nothing about the instance."""
        target = inquiry.request_queue, inquiry.instance
        if self._asked.get(target) is inquiry:
            del self._asked[target]

    def receive_answer(self, inquiry: Inquiry, payload: bytes | None) -> None:
        """Process the answer to a question. Never raises.

        Args:
            payload: None: there was none in time.
        """
        target = inquiry.request_queue, inquiry.instance
        if self._asked.get(target) is not inquiry:
            return
        del self._asked[target]
        if payload is None:
            service = self.services.get(inquiry.key)
            instance = None if service is None else service.instances.get(inquiry.instance)
            if service is not None and instance is not None and inquiry.reason == "bye":
                self._remove(service, instance)
            return
        try:
            self._process_answer(inquiry, payload)
        except MalformedAnnouncementError:
            self.refused["malformed"] += 1

    def _process_answer(self, inquiry: Inquiry, payload: bytes) -> None:
        message = decode_announcement(payload)
        ref = message.read_ref()
        if message.instance.id != inquiry.instance or ref.request_queue != inquiry.request_queue:
            raise MalformedAnnouncementError("the answer of another instance")
        if not self._is_trusted(ref):
            self.refused["untrusted"] += 1
            return
        has_signature = is_signed(payload, self._trust.keys)
        if self._trust.signed_only and not has_signature:
            self.refused["unsigned"] += 1
            return
        service = self.services.get((ref.id, ref.version))
        if message.announce == BYE:
            instance = None if service is None else service.instances.get(inquiry.instance)
            if service is not None and instance is not None and (has_signature or not service.is_signed):
                self._remove(service, instance)
            return
        if message.tools is msgspec.UNSET:
            if service is not None and service.digest == message.digest:
                self._accept(ref, message, None, is_signed=has_signature)
            elif inquiry.part == 0:
                self._ask_further(inquiry, 1)
            return
        number, count = message.part
        if number != inquiry.part:
            return
        if number > 1 and inquiry.received.digest != message.digest:  # the descriptors have changed meanwhile
            self._ask_further(inquiry, 1)
            return
        has_signature = has_signature and inquiry.received.is_signed
        tools = inquiry.received.tools + message.read_tools()
        if len(tools) > self._trust.max_tools:
            self.refused["limit"] += 1
            self._report("limit", ref.id, f"it has more than {self._trust.max_tools:,} tools")
        elif number < count:
            self._ask_further(inquiry, number + 1, Received(tools, message.digest, has_signature))
        else:
            self._accept(ref, message, tools, is_signed=has_signature)

    def _ask_further(self, inquiry: Inquiry, part: int, received: Received = NOTHING) -> None:
        if inquiry.count < MAX_QUESTIONS:  # else they change all the time: the next announcement begins anew
            further = msgspec.structs.replace(inquiry, part=part, received=received, count=inquiry.count + 1)
            self._waiting[inquiry.request_queue, inquiry.instance] = further

    # -- what is believed ---------------------------------------------------------------------------------------

    def _accept(
        self, ref: ServiceRef, message: Announcement, tools: list[dict[str, Any]] | None, *, is_signed: bool
    ) -> None:
        """Process what an instance has proved, or signed. ``tools``: None: its descriptors are in force."""
        key = ref.id, ref.version
        service = self.services.get(key)
        if service is not None and service.is_signed and not is_signed and service.digest != message.digest:
            text = f"its instance '{excerpt(message.instance.id)}' has other descriptors than the signed ones"
            self._report("conflict", ref.id, text)
            return
        # Other instances keep other descriptors in force, except unsigned ones where these are signed.
        keeps = service is not None and (service.is_signed or not is_signed) and service.has_proof(message.instance.id)
        if service is None or (service.digest != message.digest and not keeps):
            if tools is None or not self._adopt(key, message, tools, is_signed=is_signed):
                return
        elif is_signed and not service.is_signed and tools is not None:
            self._adopt(key, message, tools, is_signed=True)
        service = self.services[key]
        if message.instance.id not in service.instances and len(service.instances) >= self._trust.max_instances:
            self.refused["limit"] += 1
            return
        self._add(service, message, is_proved=True, is_signed=is_signed)
        self._update_conflicts(service)

    def _share(self, service: AnnouncedService, name: str) -> None:
        """Find the share of an instance, which may have gone."""
        queue, instance = service.ref.request_queue, service.instances.get(name)
        share = 1.0
        if instance is not None and instance.is_proved:
            is_held = instance.digest != service.digest
            share = 0.0 if is_held else min(max(instance.info.weight, MIN_WEIGHT), MAX_WEIGHT)
        shares = self.shares.setdefault(queue, {})
        if shares.get(name, 1.0) != share:
            shares[name] = share
            self._changed_shares.add(queue)
        if share == 1.0:
            shares.pop(name, None)
            if not shares:
                del self.shares[queue]

    def pop_changed_shares(self) -> list[tuple[str, dict[str, float]]]:
        """Return request topics whose instances have other shares than at the last call, with all that are not 1."""
        changed, self._changed_shares = self._changed_shares, set()
        return [(queue, dict(self.shares.get(queue, {}))) for queue in changed]

    def _update_conflicts(self, service: AnnouncedService) -> None:
        """Report the instances that are held back as refused items, so that logs, events and metrics name them."""
        former = service.refused
        names = {each.info.id for each in service.conflicting}
        if names != former.keys():
            for name in names.symmetric_difference(former):
                self._share(service, name)
            service.refused = {name: former.get(name) or self._refuse(service, name) for name in names}
            self.version += 1

    def _refuse(self, service: AnnouncedService, instance: str) -> Item:
        name = f"{service.ref.id}, instance {excerpt(instance)}"  # no tool has this name
        origin = f"{self._source}:{name}"
        problem = Problem(
            origin,
            "",
            "it has other descriptors than the first instance of this version, and is held back",
            "start all instances with the same descriptors, or declare another version",
        )
        return Item(origin, "tool", name, Refused((problem,)), self._namespace)

    def _adopt(self, key: Key, message: Announcement, tools: list[dict[str, Any]], *, is_signed: bool) -> bool:
        """Put descriptors in force. Return whether they are."""
        try:
            raw = message.read_service()
            ref = read_ref(raw)
            items = self._trust.make_items(self._source, raw, tools, is_signed=is_signed, namespace=self._namespace)
        except MalformedAnnouncementError:
            self.refused["malformed"] += 1
            return False
        except UntrustedError as error:
            self.refused["untrusted"] += 1
            self._report("untrusted", key[0], str(error))
            return False
        former = self.services.get(key)
        others = sum(len(each.items) for each in self.services.values() if each is not former)
        if others + len(items) > self._trust.max_items:
            self.refused["limit"] += 1
            self._report("limit", ref.id, f"there are {self._trust.max_items:,} announced services and tools already")
            return False
        if former is None:
            self.services[key] = AnnouncedService(ref, message.digest, is_signed, items, {})
        else:
            former.ref, former.digest, former.is_signed, former.items = ref, message.digest, is_signed, items
            for each in former.instances.values():
                if not each.is_proved and each.info.id != message.instance.id:
                    self._inquire(ref, each.info.id, "new")  # whether it has other descriptors is to be reported
        self.version += 1
        return True

    def _remove(self, service: AnnouncedService, instance: AnnouncedInstance) -> None:
        service.instances.pop(instance.info.id, None)
        self._share(service, instance.info.id)
        self._update_conflicts(service)
        if not service.instances:
            service.gone_at = self._life
            return
        if service.has_proof():
            return
        # Another instance must prove itself now; of those that were held back, one gives the descriptors.
        for each in service.instances.values():
            each.is_proved = False
            self._inquire(service.ref, each.info.id, "bye" if each.digest == service.digest else "new")
        self._update_conflicts(service)

    # -- results ------------------------------------------------------------------------------------------------

    def items(self) -> list[Item]:
        """Return the items of all services, in the order in which these were found, and a refused one for each instance
        that is held back."""
        services = self.services.values()
        refused = (item for service in services for item in service.refused.values())
        return [*(item for service in services for item in service.items), *refused]

    def pop_reports(self) -> list[str]:
        """Return what an operator should know since the last call: services that are refused, and why."""
        reports, self._reports = self._reports, []
        return reports

    def _report(self, kind: str, service: str, problem: str) -> None:
        about = kind, service
        if self._life < self._reported_at.get(about, -REPORT_EVERY_S) + REPORT_EVERY_S or len(self._reports) >= 100:
            return
        remember(self._reported_at, about, self._life, MAX_REMEMBERED)
        self._reports.append(f"an announcement of the service '{excerpt(service)}' is not in force: {problem}")
