"""Instances that announce themselves to a table of announced services, without a broker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dispatch.announcements import (
    BYE,
    HERE,
    AnnouncementWriter,
    DescriptorParts,
    InstanceInfo,
    Question,
    decode_question,
)
from dispatch.announcements.table import AnnouncementTable, Inquiry
from dispatch.catalog.items import Refused

TOOL = {
    "type": "tool-service",
    "name": "price",
    "description": "Price of a product",
    "service": "shop",
    "read-only": True,
}


def service(name: str = "shop", **keys: Any) -> dict[str, Any]:
    """Return the descriptor of a service."""
    topics = {f"{kind}-queue": f"non-persistent://tg/{kind}/{name}" for kind in ("request", "response")}
    return {"id": name, **topics, **{key.replace("_", "-"): value for key, value in keys.items()}}


def tool(name: str = "price", **keys: Any) -> dict[str, Any]:
    """Return the descriptor of a tool."""
    return {**TOOL, "name": name, **{key.replace("_", "-"): value for key, value in keys.items()}}


class AnnouncingInstance:
    """An instance of a service.

    Args:
        id, incarnation: of the instance.
        described: its service.
        tools: of the service.
        keys: with which it signs.
        info: further values of the instance, such as ``weight``.
    """

    def __init__(
        self,
        id: str = "shop-1",
        *,
        incarnation: str = "1",
        described: Mapping[str, Any] | None = None,
        tools: list[dict[str, Any]] | None = None,
        keys: Mapping[str, bytes] | None = None,
        **info: Any,
    ) -> None:
        self.id = id
        self.parts = DescriptorParts(described or service(), tools or [tool()])
        version = self.parts.ref.get("version")
        self.writer = AnnouncementWriter(InstanceInfo(id, incarnation, version, **info), keys or {})
        self.is_alive = True
        self.is_leaving = False

    @property
    def queue(self) -> str:
        return str(self.parts.service["request-queue"])

    def heartbeat(self) -> bytes:
        return self.writer.write(HERE, self.parts)

    def bye(self) -> bytes:
        self.is_leaving = True
        return self.writer.write(BYE, self.parts)

    def change(self, tools: list[dict[str, Any]]) -> list[bytes]:
        """Serve other tools from now on."""
        self.parts = DescriptorParts(self.parts.service, tools)
        return self.writer.write_all(self.parts)

    def answer(self, inquiry: Inquiry) -> bytes | None:
        if not self.is_alive or (inquiry.request_queue, inquiry.instance) != (self.queue, self.id):
            return None
        question = decode_question(Question(instance=inquiry.instance, part=inquiry.part).encode())
        part = min(question.part, len(self.parts.parts))
        return self.writer.write(BYE if self.is_leaving else HERE, self.parts, part=part)


def settle(table: AnnouncementTable, *instances: AnnouncingInstance) -> int:
    """Answer all questions of a table, as far as one of ``instances`` is asked. Return their number."""
    count = 0
    while asked := list(table.pop_inquiries()):
        for inquiry in asked:
            count += 1
            answers = [answer for each in instances if (answer := each.answer(inquiry)) is not None]
            table.receive_answer(inquiry, answers[0] if answers else None)
    return count


def names(table: AnnouncementTable) -> list[str]:
    """Return the keys of the tools in the catalogue."""
    return [item.key for item in table.items() if item.kind == "tool" and not isinstance(item.raw, Refused)]
