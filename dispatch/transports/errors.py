"""Map pulsar-client's result names, and other failures of a connection, to errors that name the fix."""

from __future__ import annotations

import re

from dispatch._internal import describe_type
from dispatch.errors import DispatchError, ErrorType, TransportError

# The request was certainly not sent: no tool can have been executed, so that a repeat is safe.
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
    """Return ``tg/request`` for ``non-persistent://tg/request/joke``."""
    return "/".join(topic.partition("://")[2].split("/")[:2])


_NO_CALL = re.compile(r"(?:No tool was executed|The tool was not executed): ")


def _not_sent(type: ErrorType, text: str) -> TransportError:
    return TransportError(type, f"No tool was executed: {text}", may_have_run=False)


def _not_executed(type: ErrorType, text: str, retry_after: float | None = None) -> TransportError:
    """Return the error of one call. ``retry_after``: seconds after which the tool may be called again."""
    if retry_after is not None:
        text = f"{text} Use another tool, or call it again in {retry_after:g} s or later."
    return TransportError(type, f"The tool was not executed: {text}", may_have_run=False, retry_after=retry_after)


def describe_without_call(error: DispatchError) -> str:
    """Return the text of an error for a reader who has made no call, such as the operator of a service: without the
    statement that no tool was executed."""
    return _NO_CALL.sub("", error.message, count=1)


def opening_failed(name: str, *, url: str, topic: str) -> TransportError:
    """Return the error of a producer or consumer that could not be opened. ``name`` is pulsar-client's name of the
    result."""
    namespace = namespace_of(topic)
    tenant = namespace.partition("/")[0]
    match name:
        case "TopicNotFound":
            return _not_sent(
                ErrorType.NO_SUCH_NAMESPACE,
                # The broker distinguishes the two only in texts that pulsar-client logs and does not return.
                f"the broker has no namespace '{namespace}', or creates no topics in it (topic "
                f"{topic}). Create it (pulsar-admin tenants create {tenant}; pulsar-admin namespaces create "
                f"{namespace}), or allow the topic (pulsar-admin namespaces set-auto-topic-creation -e -t "
                f"non-partitioned {namespace}); `dispatch doctor` shows what is missing.",
            )
        case "AuthenticationError" | "AuthorizationError" | "ErrorGettingAuthenticationData":
            return unauthorized(
                url,
                f"the role has no rights in '{namespace}': agents produce to the request namespace and consume from the "
                "response namespace, services the reverse; pulsar-admin namespaces grant-permission",
            )
        case (
            "ConnectError" | "Timeout" | "NotConnected" | "ReadError" | "TooManyLookupRequestException" | "LookupError"
        ):
            return unreachable(url)
        case "ConsumerBusy" | "ProducerBusy":
            return _not_sent(
                ErrorType.TOPIC_BUSY, f"another client uses {topic} exclusively. Stop that client, or use another name."
            )
        case "InvalidTopicName":
            return _not_sent(
                ErrorType.BAD_TOPIC, f"'{topic}' is not a topic name. Use non-persistent://TENANT/NAMESPACE/NAME."
            )
        case "AlreadyClosed":
            return closed(f"the connection was closed before {topic} was open")
        case _:
            return _not_sent(
                ErrorType.TOPIC_REFUSED,
                f"the broker at {url} refused to open {topic} ({name}). Check the broker's log, "
                "or run `dispatch doctor`.",
            )


def describe_refusal(error: TransportError, topic: str) -> str:
    """Return in a few words why ``topic`` cannot be opened: the same ones for topics with the same cause."""
    namespace = namespace_of(topic)
    match error.type:
        case ErrorType.NO_SUCH_NAMESPACE:
            return f"no namespace {namespace}"
        case ErrorType.UNAUTHORIZED:
            return f"no rights in {namespace}"
        case ErrorType.UNREACHABLE:
            return "no reply of the broker"
        case _:
            return f"{error.type} in {namespace}"


def closed(what: str = "the connection is closed") -> TransportError:
    """Return the error of a use of a connection that is closed."""
    return _not_executed(ErrorType.CLOSED, f"{what}. Open a new connection.")


def publish_queue_full(queued: int, *, topic: str, retry_after: float) -> TransportError:
    """Return the error of a message that found ``queued`` messages before it."""
    text = f"{queued:,} messages to {topic} wait to be sent already."
    return _not_executed(ErrorType.PUBLISH_QUEUE_FULL, text, retry_after)


def too_many_inboxes(count: int, *, topic: str, retry_after: float) -> TransportError:
    """Return the error of a peer whose inbox is not opened: ``count`` are open or being opened."""
    text = f"{topic} was not opened, because {count:,} inboxes are open or too many were opened at once."
    return _not_executed(ErrorType.PUBLISH_QUEUE_FULL, text, retry_after)


def bad_address(url: str, why: str) -> TransportError:
    """Return the error of a broker address that is not valid. Credentials in it are not shown."""
    if "@" in url:
        scheme, separator, _ = url.rpartition("@")[0].partition("://")
        url = f"{scheme if separator else ''}{separator}…@{url.rpartition('@')[2]}"
        why = " (a token is given with DISPATCH_TOKEN, --token-file or Security(token=…))"
    return _not_sent(
        ErrorType.BAD_ADDRESS,
        f"'{url}' is not a broker address{why}. Use pulsar://HOST:6650, pulsar+ssl://HOST:6651 or memory://.",
    )


def no_address(given: object) -> TransportError:
    """Return the error of a broker address that is no text."""
    why = ": is an environment variable unset?" if given is None else "."
    return _not_sent(
        ErrorType.BAD_ADDRESS,
        f"{describe_type(given)} is not a broker address{why} Use pulsar://HOST:6650, pulsar+ssl://HOST:6651 or memory://.",
    )


def connection_refused(url: str, reason: str) -> TransportError:
    """Return the error of a connection that the broker refused for another reason than credentials."""
    return _not_sent(
        ErrorType.CONNECTION_REFUSED,
        f"the broker at {url} refused the connection ({_as_clause(reason)}). Check the broker's log.",
    )


def unreachable(url: str) -> TransportError:
    """Return the error of a connection to ``url`` that no broker accepted."""
    return _not_sent(
        ErrorType.UNREACHABLE,
        f"no Pulsar broker replies at {url}. Start one (`dispatch broker start`) or give its address (on the command line "
        "--broker or DISPATCH_BROKER); `dispatch doctor` finds the cause.",
    )


def too_many_open_files(url: str) -> TransportError:
    """Return the error of a connection that this process could not open: its file descriptors are used up."""
    return _not_sent(
        ErrorType.UNREACHABLE,
        f"{url} was not tried, because this process has reached its limit of open files. Raise the limit (`ulimit -n`, "
        "LimitNOFILE= of systemd), or close what is not needed.",
    )


def slow_to_open(url: str, seconds: float) -> TransportError:
    """Return the error of a topic that a broker which replies has not opened in ``seconds``."""
    return _not_sent(
        ErrorType.UNREACHABLE,
        f"the Pulsar broker at {url} replies, but has not opened a topic in {seconds:.0f} s. If it has just started, try "
        "again later; otherwise see its log, or run `dispatch doctor`.",
    )


class UnresolvedHostError(TransportError):
    """The name of a broker's host cannot be resolved."""

    def __init__(self, url: str, *hosts: str) -> None:
        self.hosts = hosts
        names = " and ".join(f"'{host}'" for host in hosts)
        what = f"the {'name' if len(hosts) == 1 else 'names'} {names} cannot be resolved"
        super().__init__(
            ErrorType.UNREACHABLE,
            f"No tool was executed: no Pulsar broker replies at {url}, because {what}. Correct the address "
            "(on the command line --broker or DISPATCH_BROKER), or the name service of this machine.",
            may_have_run=False,
        )


def unauthorized(url: str, reason: str) -> TransportError:
    """Return the error of credentials that the broker refused for ``reason``."""
    return _not_sent(
        ErrorType.UNAUTHORIZED,
        f"the broker at {url} refused the credentials ({_as_clause(reason)}). Give a valid token "
        "whose role may use the namespace: DISPATCH_TOKEN, --token-file or Security(token=…).",
    )


def no_token(url: str, reason: str) -> TransportError:
    """Return the error of a token that could not be read."""
    return _not_sent(
        ErrorType.UNAUTHORIZED,
        f"the token for {url} cannot be read ({_as_clause(reason)}). Correct DISPATCH_TOKEN_FILE, "
        "--token-file or Security(token=…).",
    )


def untrusted(url: str, reason: str) -> TransportError:
    """Return the error of a TLS handshake that failed for ``reason``."""
    return _not_sent(
        ErrorType.UNTRUSTED,
        f"the TLS handshake with {url} failed ({_as_clause(reason)}). Give the authority that signed the broker's "
        "certificate (--trust-certs, DISPATCH_TRUST_CERTS or Security(trust_certs=…)), and the port that speaks TLS.",
    )


def wrong_protocol(url: str, host: str, port: int, *, http: bool) -> TransportError:
    """Return the error of a port that speaks HTTP, or Pulsar with TLS where ``url`` has no TLS, or the reverse."""
    at = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if http:
        what = "speaks HTTP, as Pulsar's admin interface does"
        fix = "Use the broker's own port: pulsar://HOST:6650, or pulsar+ssl://HOST:6651 with TLS"
    elif url.startswith("pulsar+ssl://"):
        what = "speaks Pulsar without TLS"
        fix = f"Use the broker's TLS port (6651 by default), or pulsar://{at} if the connection need not be encrypted"
    else:
        what = "speaks TLS"
        fix = f"Use pulsar+ssl://{at}"
    return _not_sent(ErrorType.WRONG_PROTOCOL, f"{at} {what}, so that {url} cannot be used. {fix}.")


def sending_failed(name: str, *, topic: str) -> TransportError:
    """Return the error of a publish that failed. ``may_have_run`` stays True where the message may have been sent."""
    may_have_run = name not in _NEVER_SENT
    match name:
        case "MessageTooBig":
            return TransportError(
                ErrorType.REQUEST_TOO_LARGE,
                f"The tool was not executed: the broker accepts no message of this size on {topic}. Send less, or raise the "
                "broker's maxMessageSize.",
                may_have_run=may_have_run,
                retryable=False,
            )
        case "Dropped":
            text = (
                f"the broker dropped the message to {topic} because too many are published at once on this connection."
            )
            return _not_executed(ErrorType.PUBLISH_DROPPED, text, 0.1)
        case "AlreadyClosed":
            what = f"the connection ended while sending to {topic}"
            return _failed_send(ErrorType.CONNECTION_LOST, what, may_have_run)
        case _:
            return _failed_send(ErrorType.SEND_FAILED, f"sending to {topic} failed ({name})", may_have_run)


def message_rejected(error: Exception, *, topic: str) -> TransportError:
    """Return the error of a message that pulsar-client refuses to publish."""
    what = f"pulsar-client rejects the message to {topic} ({type(error).__name__})"
    return _failed_send(ErrorType.SEND_FAILED, what, may_have_run=False)


def _failed_send(type: ErrorType, what: str, may_have_run: bool) -> TransportError:
    text = f"The tool was not executed: {what}. Use another tool, or report the failure."
    if may_have_run:
        text = (
            f"The tool may have been executed: {what}, and the message may have been sent before. Check its effect "
            "before you call it again, or report the failure."
        )
    return TransportError(type, text, may_have_run=may_have_run)


def _as_clause(text: str) -> str:
    return text.strip().rstrip(".").replace(". ", "; ")
