"""The session of a hand-made dispatcher: what its requests must say for an instance to take them as a dispatcher's."""

from __future__ import annotations

from dispatch.messaging.wire import Property, derive_key

SECRET = "the secret of a hand-made dispatcher"
KEY = derive_key(SECRET)
REPLY_TOPIC = f"non-persistent://tg/response/dispatch-reply-{KEY}-peer"


def request_id(number: int, *, secret: str = SECRET) -> str:
    """The id of that dispatcher's request of this number."""
    return f"{derive_key(secret)}.1-{number:x}-abcdef"


def from_peer(number: int, reply_to: str = REPLY_TOPIC, **properties: str) -> dict[str, str]:
    """The properties of a request of that dispatcher (``_`` for ``-``)."""
    named = {Property.ID: request_id(number), Property.REPLY_TO: reply_to, Property.SECRET: SECRET}
    return named | {key.replace("_", "-"): value for key, value in properties.items()}
