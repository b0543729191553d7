"""Which topics a service may reply to: those of dispatchers in allowed namespaces, for their owners only."""

from __future__ import annotations

from collections.abc import Iterable

from dispatch.messaging.wire.sessions import MAX_SECRET_CHARS, session_key
from dispatch.messaging.wire.topic_name import TopicName
from dispatch.messaging.wire.topics import reply_key

MAX_TOPIC_CHARS = 512
"""Longest name of an inbox."""
MAX_KNOWN = 16_384
"""Inboxes whose owners are remembered: each is checked with every HELLO, and parsing a name takes microseconds."""


class ReplyPermission:
    """Decides whether a topic that a dispatcher names may be replied to.

    Args:
        response_queue: the service's response topic; inboxes in its namespace are allowed.
        namespaces: further ``tenant/namespace`` where inboxes are allowed.
        allows_persistent: persistent topics are allowed, too.
    """

    def __init__(self, response_queue: str, namespaces: Iterable[str] = (), *, allows_persistent: bool = False) -> None:
        self._allows_persistent = allows_persistent
        self._allowed = {TopicName.parse(response_queue).namespace_path, *namespaces}
        self._owners: dict[str, str | None] = {}

    def __call__(self, inbox: str, secret: str) -> bool:
        """Return whether ``inbox`` is a reply topic in an allowed namespace, and belongs to the holder of ``secret``."""
        if len(inbox) > MAX_TOPIC_CHARS or len(secret) > MAX_SECRET_CHARS:
            return False
        owner = self._find_owner(inbox)
        return owner is not None and owner == session_key(secret)

    def _find_owner(self, inbox: str) -> str | None:
        if inbox in self._owners:
            return self._owners[inbox]
        owner = None
        try:
            name = TopicName.parse(inbox)
        except ValueError:
            pass
        else:
            if name.namespace_path in self._allowed and (self._allows_persistent or not name.persistent):
                owner = reply_key(name)
        if len(self._owners) >= MAX_KNOWN:
            self._owners.clear()
        self._owners[inbox] = owner
        return owner


def find_inbox_owner(inbox: str) -> str:
    """Return what an inbox belongs to: the dispatcher's session key, or for an instance the topic itself."""
    try:
        return reply_key(TopicName.parse(inbox)) or inbox
    except ValueError:
        return inbox
