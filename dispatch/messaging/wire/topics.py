"""Names of the topics that dispatchers and instances use beside a service's own.

They follow TrustGraph's permissions: agents produce to the request namespace and consume from the response namespace,
services the reverse. Topics from dispatchers to instances are therefore in the namespace of the service's request
topic, topics from instances to dispatchers in the namespace of its response topic.
"""

from __future__ import annotations

from dispatch.messaging.wire.sessions import KEY_CHARS
from dispatch.messaging.wire.topic_name import TopicName

_REPLY = "dispatch-reply-"
_INSTANCE = "dispatch-instance-"


REQUEST_NAMESPACE, RESPONSE_NAMESPACE = "tg/request", "tg/response"
"""TrustGraph's namespaces."""


def service_queues(service: str) -> tuple[str, str]:
    """Return the request topic and the response topic of a service of this name, as in TrustGraph."""
    return f"non-persistent://{REQUEST_NAMESPACE}/{service}", f"non-persistent://{RESPONSE_NAMESPACE}/{service}"


def reply_topic(response_queue: str, dispatcher: str, connection: int = 0) -> str:
    """Return the topic on which a dispatcher receives its own replies.

    Args:
        dispatcher: the key of its session, a hyphen and its name.
        connection: number of the reply connection, 0 for the first.
    """
    return str(TopicName.parse(response_queue).sibling(f"{_REPLY}{dispatcher}{f'-{connection}' if connection else ''}"))


def is_inbox(topic: str) -> bool:
    """Return whether ``topic`` belongs to one process, a dispatcher or an instance, and is of no use after its end."""
    return topic.rpartition("/")[2].startswith((_REPLY, _INSTANCE))


def reply_key(topic: TopicName) -> str | None:
    """Return the session key in the name of a reply topic; None: it is no reply topic."""
    if not topic.name.startswith(_REPLY):
        return None
    key, _, _ = topic.name.removeprefix(_REPLY).partition("-")
    return key if len(key) == KEY_CHARS else None


def instance_prefix(request_queue: str) -> str:
    """Return the beginning of the names of all instances' own topics in the namespace of ``request_queue``."""
    return str(TopicName.parse(request_queue).sibling(_INSTANCE))


def instance_topic(request_queue: str, instance: str) -> str:
    """Return the topic of one instance: for requests, challenges and acknowledgements that are meant for it alone."""
    name = TopicName.parse(request_queue).name
    # With the length of its first part a name is unambiguous: instance `web-1` of `search` is not `1` of `search-web`.
    return f"{instance_prefix(request_queue)}{len(name)}-{name}-{instance}"


def hello_topic(request_queue: str) -> str:
    """Return the topic on which the instances that serve ``request_queue`` receive hellos of dispatchers."""
    topic = TopicName.parse(request_queue)
    return str(topic.sibling(f"dispatch-hello-{topic.name}"))


def announcement_topic(request_queue: str, response_queue: str) -> str:
    """Return the topic on which the instances that serve ``request_queue`` announce that they start and stop."""
    name = TopicName.parse(request_queue).name
    return str(TopicName.parse(response_queue).sibling(f"dispatch-announce-{name}"))
