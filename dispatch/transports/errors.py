"""From pulsar-client's result names to typed errors that name the fix."""

from __future__ import annotations

from dispatch.outcome import TransportError

# The request surely never left: nothing can have run, so that a repeat is safe.
_NEVER_SENT = frozenset(
    {
        "AuthenticationError",
        "AuthorizationError",
        "ConsumerBusy",
        "InvalidConfiguration",
        "InvalidTopicName",
        "LookupError",
        "MemoryBufferIsFull",
        "MessageTooBig",
        "NotConnected",
        "ConnectError",
        "ProducerBlockedQuotaExceededError",
        "ProducerBlockedQuotaExceededException",
        "ProducerBusy",
        "ProducerQueueIsFull",
        "ServiceUnitNotReady",
        "TooManyLookupRequestException",
        "TopicNotFound",
        "TopicTerminated",
    }
)


def namespace_of(topic: str) -> str:
    """``tg/request`` of ``non-persistent://tg/request/joke``."""
    return "/".join(topic.partition("://")[2].split("/")[:2])


def opening_failed(name: str, *, url: str, topic: str) -> TransportError:
    """Why a producer or a consumer could not be made. ``name`` is pulsar-client's name of the result."""
    namespace = namespace_of(topic)
    tenant = namespace.partition("/")[0]
    match name:
        case "TopicNotFound":
            return TransportError(
                "no-such-namespace",
                f"The broker has no namespace '{namespace}' (topic {topic}). Create it: pulsar-admin tenants create "
                f"{tenant}; pulsar-admin namespaces create {namespace}. `dispatch doctor` shows what is missing.",
                sent=False,
            )
        case "AuthenticationError" | "AuthorizationError" | "ErrorGettingAuthenticationData":
            return TransportError(
                "unauthorized",
                f"The broker at {url} refused our credentials for {topic}. Give a valid token (DISPATCH_TOKEN, --token-file "
                f"or Security(token=…)) whose role may use the namespace '{namespace}'.",
                sent=False,
            )
        case (
            "ConnectError" | "Timeout" | "NotConnected" | "ReadError" | "TooManyLookupRequestException" | "LookupError"
        ):
            return unreachable(url)
        case "ConsumerBusy" | "ProducerBusy":
            return TransportError(
                "busy", f"Somebody else holds {topic} exclusively; end that one or use another name.", sent=False
            )
        case "InvalidTopicName":
            return TransportError(
                "bad-topic",
                f"'{topic}' is no topic name; write non-persistent://TENANT/NAMESPACE/NAME.",
                sent=False,
            )
        case _:
            return TransportError("transport", f"The broker at {url} refused {topic}: {name}.", sent=False)


def unreachable(url: str) -> TransportError:
    """No broker answers at ``url``."""
    return TransportError(
        "unreachable",
        f"No Pulsar broker answers at {url}. Start one (`dispatch broker start`) or give its address "
        "(--broker or DISPATCH_BROKER); `dispatch doctor` looks closer.",
        sent=False,
    )


def sending_failed(name: str, *, topic: str) -> TransportError:
    """Why a publish failed. ``sent`` stays True where the message may have got through."""
    sent = name not in _NEVER_SENT
    doubt = "It may have got through all the same." if sent else "It was not sent."
    match name:
        case "MessageTooBig":
            return TransportError(
                "too-large", f"The broker takes no message of this size on {topic}. {doubt}", sent=sent
            )
        case "Dropped":
            return TransportError(
                "dropped",
                f"The broker dropped the message to {topic}: too many publishes at once on this connection. {doubt}",
                sent=False,
                retry_after=0.1,
            )
        case "AlreadyClosed":
            return TransportError(
                "connection-lost", f"The connection ended while sending to {topic}. {doubt}", sent=sent
            )
        case _:
            return TransportError("send-failed", f"Sending to {topic} failed: {name}. {doubt}", sent=sent)
