"""The key of an instance pool: what calls must have in common to share what is known of a service's instances."""

from __future__ import annotations

import msgspec

from dispatch.catalog import Instance

Topics = tuple[str, str]
"""A request topic and the response topic that belongs to it."""


class PoolKey(msgspec.Struct, frozen=True, cache_hash=True):
    """What calls must have in common to share what is known of a service's instances.

    Attributes:
        service: its id.
        topics: where it is served.
        instances: where each is, if they have topics of their own.
        tool: the tool, if its policy has settings for its instances alone; else ``""``.
    """

    service: str
    topics: Topics
    instances: tuple[Instance, ...]
    tool: str = ""

    @property
    def pairs(self) -> tuple[Topics, ...]:
        """The topics of its instances; where they have none of their own, the service's."""
        return tuple((each.request_queue, each.response_queue) for each in self.instances) or (self.topics,)
