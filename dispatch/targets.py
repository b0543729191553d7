"""Targets: what a call is made of that does not change from call to call, worked out once for each tool."""

from __future__ import annotations

import msgspec

from dispatch.catalog import Catalog, ServiceDescriptor, UnknownService, UnknownTool
from dispatch.catalog.topics import TopicName
from dispatch.messages import json_text
from dispatch.outcome import Rejected
from dispatch.policy import Policy


class Target(msgspec.Struct, frozen=True):
    """What a call is made of that does not change from call to call.

    Attributes:
        label: the tool's name (the service's id where a client calls a service without a tool).
        service: where it is served.
        config_text: the config values, as the JSON text that travels.
        policy: defaults ← service ← tool.
        repeatable: declared read-only or idempotent.
        kept: its requests go over a persistent topic.
    """

    label: str
    service: ServiceDescriptor
    config_text: str
    policy: Policy
    repeatable: bool = False
    kept: bool = False

    def redelivered(self, idempotency_key: str | None) -> bool:
        """May the broker give a request to another instance when the one that had it died?"""
        return self.kept and (self.repeatable or idempotency_key is not None)


class Targets:
    """The targets of one catalogue.

    Args:
        catalog: services and tools.
        policy: what calls may take where neither service nor tool says more.
    """

    def __init__(self, catalog: Catalog, policy: Policy) -> None:
        self.catalog = catalog
        self._policy = policy
        self._tools: dict[str, Target] = {}

    def tool(self, name: str) -> Target:
        """What a call of the tool ``name`` is made of.

        Raises:
            Rejected: there is no such tool; the message has the near names.
        """
        target = self._tools.get(name)
        if target is None:
            try:
                descriptor = self.catalog.tool(name)
            except UnknownTool as error:
                raise Rejected("unknown-tool", str(error), rejected_by="catalog", alternatives=error.near) from None
            service = self.catalog.service_of(descriptor)
            target = self._tools[name] = Target(
                name,
                service,
                json_text(descriptor.config, "config"),
                self._policy.merged(service.policy).merged(descriptor.policy),
                descriptor.repeatable,
                _kept(service),
            )
        return target

    def service(self, id: str) -> Target:
        """What a call of the service ``id`` without a tool is made of.

        Raises:
            Rejected: there is no such service; the message has the near names.
        """
        try:
            descriptor = self.catalog.service(id)
        except UnknownService as error:
            raise Rejected("unknown-service", str(error), rejected_by="catalog", alternatives=error.near) from None
        return Target(id, descriptor, "{}", self._policy.merged(descriptor.policy), kept=_kept(descriptor))


def _kept(service: ServiceDescriptor) -> bool:
    return TopicName.parse(service.request_queue).persistent
