"""The topics of TrustGraph's config service."""

from __future__ import annotations

import msgspec

from dispatch.messaging.wire.topic_name import TopicName


class ConfigTopics(msgspec.Struct, frozen=True):
    """The topics of a config service: whole names, or TrustGraph's short form ``class:topicspace:topic``.

    Attributes:
        request: topic of its requests.
        response: topic of its responses.
        notification: topic on which it announces changes.
    """

    request: str = "request:tg:config"
    response: str = "response:tg:config"
    notification: str = "notify:tg:config"

    @classmethod
    def of_workspace(cls, workspace: str) -> ConfigTopics:
        """Return the topics for one workspace, which the service opens for each workspace that is registered with it. A
        client with rights to these alone reads and writes no other workspace."""
        default = cls()
        return cls(f"{default.request}:{workspace}", f"{default.response}:{workspace}", default.notification)

    def expand(self) -> ConfigTopics:
        """Return the same topics with whole names.

        Raises:
            TopicError: one of them is not a topic name.
        """
        return ConfigTopics(
            *(str(TopicName.parse(topic)) for topic in (self.request, self.response, self.notification))
        )
