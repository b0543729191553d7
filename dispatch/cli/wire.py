"""``dispatch ping``, ``info`` and ``stats``: the instances of services that announce themselves on the broker."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec
import typer

from dispatch._internal import excerpt
from dispatch.announcements.messages import (
    DEFAULT_TOPIC,
    HERE,
    Announcement,
    MalformedAnnouncementError,
    Question,
    ServiceRef,
    decode_announcement,
    is_signed,
    question_topic,
)
from dispatch.announcements.trust import Trust, UntrustedError
from dispatch.cli.base import (
    CliError,
    Exit,
    Rows,
    Settings,
    make_printable,
    print_json,
    print_out,
    run_async,
    with_settings,
)
from dispatch.messaging.wire import TopicError, TopicName
from dispatch.transports import open_transport
from dispatch.trustgraph.config import ConfigBroker

ASK_AGAIN_S: Final = 0.1
"""Seconds after which the question is sent a second time: the topic may drop a message."""
DEFAULT_WAIT_S: Final = 0.5
"""Seconds for answers, which are spread over 0.2 s."""
WATCH_S: Final = 2.0
"""Seconds between two questions with ``--watch``."""

_Service = Annotated[
    str | None, typer.Argument(metavar="SERVICE", help="Id of a service. Default: all.", show_default=False)
]
_Topic = Annotated[
    str, typer.Option("--topic", metavar="TOPIC", envvar="DISPATCH_ANNOUNCEMENTS", help="Topic of the announcements.")
]
_Wait = Annotated[float, typer.Option("--wait", metavar="SECONDS", min=0.1, help="Time for answers.")]
_Watch = Annotated[bool, typer.Option("--watch", "-w", help=f"Ask again every {WATCH_S:g} s, until Ctrl-C.")]
_Json = Annotated[bool, typer.Option("--json", help="Print each round of answers as one line of JSON.")]


class WireInstance(msgspec.Struct, frozen=True):
    """An instance that has answered.

    Attributes:
        service, version, instance, incarnation: as it announces itself.
        request_queue, response_queue: of its service.
        labels: of the instance.
        tools: names of its tools.
        stats: load and counters.
        is_signed: with a trusted key.
        untrusted: why it is outside the trust; empty: it is not.
    """

    service: str
    version: str | None
    instance: str
    incarnation: str
    request_queue: str
    response_queue: str
    labels: Mapping[str, str]
    tools: Sequence[str]
    stats: Mapping[str, Any]
    is_signed: bool
    untrusted: str


@with_settings("broker", "token_file", "trust_certs", "trust")
def ping(
    settings: Settings,
    service: _Service = None,
    topic: _Topic = DEFAULT_TOPIC,
    wait: _Wait = DEFAULT_WAIT_S,
    watch: _Watch = False,
    json: _Json = False,
) -> None:
    """List the instances of services that announce themselves.

    [bold]dispatch ping[/bold]

    [bold]dispatch ping shop --json[/bold]

    The exit code is 1 if none answers.
    """

    def show(found: Sequence[WireInstance]) -> Rows:
        return Rows({**_names(found), "age": [_age(each) for each in found]}, style="cyan")

    _run(settings, Question(service=service or "", stats=True), topic, wait, watch=watch, json=json, show=show)


@with_settings("broker", "token_file", "trust_certs", "trust")
def info(
    settings: Settings,
    service: _Service = None,
    topic: _Topic = DEFAULT_TOPIC,
    wait: _Wait = DEFAULT_WAIT_S,
    watch: _Watch = False,
    json: _Json = False,
) -> None:
    """Show topics, tools, labels and trust of the instances of services that announce themselves.

    [bold]dispatch info shop[/bold]

    Of descriptors in several parts the tools of the first part are shown. The exit code is 1 if none answers.
    """

    def show(found: Sequence[WireInstance]) -> Rows:
        columns = {
            **_names(found),
            "request queue": [make_printable(each.request_queue) for each in found],
            "trust": [_trust(each) for each in found],
            "labels": [make_printable(", ".join(f"{key}={each.labels[key]}" for key in each.labels)) for each in found],
            "tools": [make_printable(", ".join(each.tools)) for each in found],
        }
        return Rows(columns, style="cyan")

    _run(settings, Question(service=service or "", part=1, stats=True), topic, wait, watch=watch, json=json, show=show)


@with_settings("broker", "token_file", "trust_certs", "trust")
def stats(
    settings: Settings,
    service: _Service = None,
    topic: _Topic = DEFAULT_TOPIC,
    wait: _Wait = DEFAULT_WAIT_S,
    watch: _Watch = False,
    json: _Json = False,
) -> None:
    """Show load and counters of the instances of services that announce themselves.

    [bold]dispatch stats --watch[/bold]

    The exit code is 1 if none answers.
    """
    keys = ("running", "queued", "concurrency", "requests", "errors", "refused")

    def show(found: Sequence[WireInstance]) -> Rows:
        counts = {key: [_number(each.stats.get(key)) for each in found] for key in keys}
        return Rows({**_names(found), **counts, "age": [_age(each) for each in found]}, style="cyan")

    _run(settings, Question(service=service or "", stats=True), topic, wait, watch=watch, json=json, show=show)


def _names(found: Sequence[WireInstance]) -> dict[str, list[str]]:
    return {
        "service": [make_printable(each.service) for each in found],
        "version": [make_printable(each.version or "-") for each in found],
        "instance": [make_printable(each.instance) for each in found],
    }


def _number(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else "-"


def _age(each: WireInstance) -> str:
    age = each.stats.get("age")
    return f"{age:,.0f} s" if isinstance(age, int | float) else "-"


def _trust(each: WireInstance) -> str:
    return "signed" if each.is_signed else f"refused: {each.untrusted}" if each.untrusted else "by proof"


def _run(
    settings: Settings, question: Question, topic: str, wait: float, *, watch: bool, json: bool, show: Any
) -> None:
    try:
        name = TopicName.parse(topic)
    except TopicError as error:
        raise CliError(f"{error.problem}.", error.fix) from None
    trust = settings.load_trust().within(name.tenant)

    async def run() -> bool:
        async with connect_broker(settings, "dispatch ping") as broker:
            while True:
                found = await collect(broker, str(name), question, wait, trust)
                if json:
                    print_json([msgspec.to_builtins(each) for each in found])
                elif found:
                    show(found).print()
                else:
                    what = f"No instance of '{excerpt(question.service)}'" if question.service else "No service"
                    print_out(f"{what} answers on {name}. 'dispatch serve' starts one.")
                if not watch:
                    return bool(found)
                await asyncio.sleep(max(0.0, WATCH_S - wait))

    if not run_async(run()):
        raise typer.Exit(Exit.FAILED)


@contextlib.asynccontextmanager
async def connect_broker(settings: Settings, command: str) -> AsyncIterator[ConfigBroker]:
    """Connect ``command`` to the broker, inside the context.

    Raises:
        TransportError: it is out of reach.
    """
    async with contextlib.AsyncExitStack() as stack:
        transport = open_transport(settings.require_pulsar_url(command), security=settings.security())
        stack.push_async_callback(transport.close)
        await transport.start()
        broker = ConfigBroker(transport, f"cli-{secrets.token_hex(4)}")
        stack.push_async_callback(broker.close)
        yield broker


async def collect(
    broker: ConfigBroker, topic: str, question: Question, wait: float, trust: Trust
) -> list[WireInstance]:
    """Ask all services, and return the instances that answer within ``wait`` seconds, sorted.

    Raises:
        TransportError: the broker is out of reach, or refuses a topic.
    """
    found: dict[tuple[str, str, str], WireInstance] = {}

    def receive(payload: bytes) -> None:
        with contextlib.suppress(MalformedAnnouncementError):
            message = decode_announcement(payload)
            ref = message.read_ref()
            has_answered = question.service in ("", ref.id) and message.stats is not msgspec.UNSET
            if message.announce == HERE and has_answered:
                key = ref.id, ref.version or "", message.instance.id
                found[key] = _read_instance(message, ref, payload, trust)

    subscription = await broker.subscribe(topic, receive)
    try:
        await broker.publish(question_topic(topic), question.encode())
        await asyncio.sleep(min(ASK_AGAIN_S, wait))
        await broker.publish(question_topic(topic), question.encode())
        await asyncio.sleep(max(0.0, wait - ASK_AGAIN_S))
    finally:
        await subscription.close()
    return [found[key] for key in sorted(found)]


def _read_instance(message: Announcement, ref: ServiceRef, payload: bytes, trust: Trust) -> WireInstance:
    untrusted = ""
    try:
        trust.check_service(ref)
    except UntrustedError as error:
        untrusted = str(error)
    return WireInstance(
        ref.id,
        ref.version,
        message.instance.id,
        message.instance.incarnation,
        ref.request_queue,
        ref.response_queue,
        message.instance.labels,
        [name for tool in message.read_tools() if isinstance(name := tool.get("name"), str)],
        {} if message.stats is msgspec.UNSET else message.stats,
        is_signed(payload, trust.keys),
        untrusted,
    )
