"""Names of the topics that our two sides have beside a service's own: a rule that both must keep.

All of them lie in the namespace of the service's response topic, and are kept or not as that is.
"""

from __future__ import annotations

from dispatch.catalog.topics import TopicName


def reply_topic(response_queue: str, dispatcher: str, lane: int = 0) -> str:
    """Where a dispatcher gets its own replies; ``lane``: on which of its connections."""
    return str(TopicName.parse(response_queue).sibling(f"dispatch-reply-{dispatcher}{f'-{lane}' if lane else ''}"))


def control_prefix(topic: str) -> str:
    """What the control topic of an instance that answers on ``topic`` begins with: its own topic, for acknowledgements and
    for requests that are meant for it alone."""
    return str(TopicName.parse(topic).sibling("dispatch-control-"))


def own_name(request_queue: str, instance: str) -> str:
    """What the control topic of an instance that serves ``request_queue`` ends with. Two services of one namespace may have
    instances of the same name."""
    return f"{TopicName.parse(request_queue).name}-{instance}"


def hello_topic(request_queue: str, response_queue: str) -> str:
    """Where the instances of ours that serve ``request_queue`` listen for whoever looks for them."""
    name = TopicName.parse(request_queue).name
    return str(TopicName.parse(response_queue).sibling(f"dispatch-hello-{name}"))
