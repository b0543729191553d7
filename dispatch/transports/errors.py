"""From pulsar-client's result names to typed errors that name the fix."""

from __future__ import annotations

from dispatch.errors import ErrorType, TransportError

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
                ErrorType.NO_SUCH_NAMESPACE,
                # The broker tells them apart in words that pulsar-client only logs.
                f"The broker has no namespace '{namespace}', or makes no topics in it by itself (topic {topic}). Create it: "
                f"pulsar-admin tenants create {tenant}; pulsar-admin namespaces create {namespace}; or, if it is there, "
                f"let it: pulsar-admin namespaces set-auto-topic-creation -e -t non-partitioned {namespace}. "
                "`dispatch doctor` shows what is missing.",
                sent=False,
            )
        case "AuthenticationError" | "AuthorizationError" | "ErrorGettingAuthenticationData":
            return unauthorized(
                url,
                f"our role has no rights in '{namespace}'; agents produce to the request namespace and consume from the "
                "response namespace, services the reverse: pulsar-admin namespaces grant-permission",
            )
        case (
            "ConnectError" | "Timeout" | "NotConnected" | "ReadError" | "TooManyLookupRequestException" | "LookupError"
        ):
            return unreachable(url)
        case "ConsumerBusy" | "ProducerBusy":
            return TransportError(
                ErrorType.TOPIC_BUSY,
                f"Somebody else holds {topic} exclusively; end that one or use another name.",
                sent=False,
            )
        case "InvalidTopicName":
            return TransportError(
                ErrorType.BAD_TOPIC,
                f"'{topic}' is no topic name; write non-persistent://TENANT/NAMESPACE/NAME.",
                sent=False,
            )
        case "AlreadyClosed":
            return TransportError(ErrorType.CLOSED, f"The connection was closed before {topic} was open.", sent=False)
        case _:
            return TransportError(ErrorType.TOPIC_REFUSED, f"The broker at {url} refused {topic}: {name}.", sent=False)


def unreachable(url: str) -> TransportError:
    """No broker answers at ``url``."""
    return TransportError(
        ErrorType.UNREACHABLE,
        f"No Pulsar broker answers at {url}. Start one (`dispatch broker start`) or give its address "
        "(--broker or DISPATCH_BROKER); `dispatch doctor` looks closer.",
        sent=False,
    )


def unauthorized(url: str, said: str) -> TransportError:
    """The broker refused our credentials; ``said`` is its reason."""
    return TransportError(
        ErrorType.UNAUTHORIZED,
        f"The broker at {url} refused our credentials ({said}). Give a valid token whose role may use the namespace: "
        "DISPATCH_TOKEN, --token-file or Security(token=…).",
        sent=False,
    )


def untrusted(url: str, said: str) -> TransportError:
    """The TLS handshake failed; ``said`` is why."""
    return TransportError(
        ErrorType.UNTRUSTED,
        f"No trusted connection to {url}: {said}. Give the authority that signed the broker's certificate "
        "(--trust-certs, DISPATCH_TRUST_CERTS or Security(trust_certs=…)), and the port that speaks TLS.",
        sent=False,
    )


def wrong_protocol(url: str, host: str, port: int, *, http: bool) -> TransportError:
    """The port speaks HTTP; or else Pulsar with TLS where ``url`` says without, or the other way round."""
    at = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if http:
        said = "speaks HTTP, as Pulsar's admin interface does"
        fix = "Use the broker's own port: pulsar://HOST:6650, or pulsar+ssl://HOST:6651 with TLS"
    elif url.startswith("pulsar+ssl://"):
        said = "speaks Pulsar without TLS"
        fix = f"Use the broker's TLS port (6651 by default), or pulsar://{at} if the connection need not be encrypted"
    else:
        said = "speaks TLS"
        fix = f"Use pulsar+ssl://{at}"
    return TransportError(ErrorType.WRONG_PROTOCOL, f"Cannot connect to {url}: {at} {said}. {fix}.", sent=False)


def sending_failed(name: str, *, topic: str) -> TransportError:
    """Why a publish failed. ``sent`` stays True where the message may have got through."""
    sent = name not in _NEVER_SENT
    doubt = "It may have got through all the same." if sent else "It was not sent."
    match name:
        case "MessageTooBig":
            return TransportError(
                ErrorType.REQUEST_TOO_LARGE,
                f"The broker takes no message of this size on {topic}. {doubt} Send less, or raise its maxMessageSize.",
                sent=sent,
                retryable=False,
            )
        case "Dropped":
            return TransportError(
                ErrorType.PUBLISH_DROPPED,
                f"The broker dropped the message to {topic}: too many publishes at once on this connection. {doubt}",
                sent=False,
                retry_after=0.1,
            )
        case "AlreadyClosed":
            return TransportError(
                ErrorType.CONNECTION_LOST, f"The connection ended while sending to {topic}. {doubt}", sent=sent
            )
        case _:
            return TransportError(ErrorType.SEND_FAILED, f"Sending to {topic} failed: {name}. {doubt}", sent=sent)
