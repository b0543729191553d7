"""``dispatch ping``, ``info`` and ``stats``: the instances of services that announce themselves on the broker."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec
import typer

from dispatch._internal import excerpt, is_deeper
from dispatch.admin import ADMIN_LABEL
from dispatch.announcements import (
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
from dispatch.calls.fleet import fleet_topic
from dispatch.cli.base import (
    CliError,
    Exit,
    Rows,
    Settings,
    print_json,
    print_out,
    run_async,
    with_settings,
)
from dispatch.cli.screen import one_line
from dispatch.cli.sources import connect_broker
from dispatch.messaging.wire import TopicError, TopicName
from dispatch.resilience.fleet import QUOTA, RATE, SLOTS, Ask, Report, Table, decode
from dispatch.schemas import MAX_DEPTH
from dispatch.trustgraph.config import ConfigBroker

ASK_AGAIN_S: Final = 0.1
"""Seconds after which the question is sent a second time: the topic may drop a message."""
DEFAULT_WAIT_S: Final = 0.5
"""Seconds for answers, which are spread over 0.2 s."""
MIN_FLEET_WAIT_S: Final = 1.2
"""Seconds in which each dispatcher of a fleet reports at least twice: a message may be lost."""
WATCH_S: Final = 2.0
"""Seconds between two questions with ``--watch``."""


@dataclass(frozen=True)
class Asking:
    """Which services are asked, and how often.

    Attributes:
        service (SERVICE): Id of a service. Default: all.
        topic (TOPIC): Topic of the announcements.
        wait (SECONDS): Time for answers.
        watch: Ask again every 2 s, until Ctrl-C.
        json: Print each round of answers as one line of JSON.
    """

    service: Annotated[str | None, typer.Argument()] = None
    topic: Annotated[str, typer.Option(envvar="DISPATCH_ANNOUNCEMENTS")] = DEFAULT_TOPIC
    wait: Annotated[float, typer.Option(min=0.1)] = DEFAULT_WAIT_S
    watch: Annotated[bool, typer.Option("--watch", "-w")] = False
    json: bool = False


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
        ignored: keys of its descriptors that are not in force, because its word about them does not count.
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
    ignored: Sequence[str]


@with_settings("broker", "token_file", "trust_certs", "trust")
def ping(settings: Settings, asking: Asking) -> None:
    """List the instances of services that announce themselves.

    [bold]dispatch ping[/bold]

    [bold]dispatch ping shop --json[/bold]

    The exit code is 1 if none answers.
    """

    def show(found: Sequence[WireInstance]) -> Rows:
        return Rows({**_names(found), "age": [_age(each) for each in found]}, style="cyan")

    _run(settings, asking, show)


@with_settings("broker", "token_file", "trust_certs", "trust")
def info(settings: Settings, asking: Asking) -> None:
    """Show topics, tools, labels and trust of the instances of services that announce themselves.

    [bold]dispatch info shop[/bold]

    Of descriptors in several parts the tools of the first part are shown. The exit code is 1 if none answers.
    """
    _run(settings, asking, show_info, part=1)


@with_settings("broker", "token_file", "trust_certs", "trust")
def stats(settings: Settings, asking: Asking, fleet: str | None = None) -> None:
    """Show load and counters of the instances of services that announce themselves; with --fleet the dispatchers of a fleet,
    their shares of limits, and quotas.

    [bold]dispatch stats --watch[/bold]

    [bold]dispatch stats --fleet shop[/bold]

    The exit code is 1 if none answers.

    Args:
        fleet (NAME): Dispatchers of this fleet, in place of services.
    """
    if fleet is not None:
        _run_fleet(settings, asking, fleet)
    else:
        _run(settings, asking, show_stats)


def show_info(found: Sequence[WireInstance]) -> Rows:
    """Return the rows of ``dispatch info``."""
    columns = {
        **_names(found),
        "request queue": [one_line(each.request_queue) for each in found],
        "trust": [one_line(_trust(each)) for each in found],
        "labels": [one_line(", ".join(f"{key}={each.labels[key]}" for key in each.labels)) for each in found],
        "tools": [one_line(", ".join(each.tools)) for each in found],
    }
    return Rows(columns, style="cyan")


def show_stats(found: Sequence[WireInstance]) -> Rows:
    """Return the rows of ``dispatch stats``."""
    keys = ("running", "queued", "concurrency", "requests", "errors", "refused")
    counts = {key: [_number(each.stats.get(key)) for each in found] for key in keys}
    return Rows({**_names(found), **counts, "age": [_age(each) for each in found]}, style="cyan")


def _names(found: Sequence[WireInstance]) -> dict[str, list[str]]:
    return {
        "service": [one_line(each.service) for each in found],
        "version": [one_line(each.version or "-") for each in found],
        "instance": [one_line(each.instance) for each in found],
    }


def _number(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else "-"


def _age(each: WireInstance) -> str:
    age = each.stats.get("age")
    return f"{age:,.0f} s" if isinstance(age, int | float) else "-"


def _trust(each: WireInstance) -> str:
    if each.is_signed:
        return "signed"
    if each.untrusted:
        return f"refused: {each.untrusted}"
    return f"by proof, without its {', '.join(each.ignored)}" if each.ignored else "by proof"


def _run(settings: Settings, asking: Asking, show: Callable[[Sequence[WireInstance]], Rows], part: int = 0) -> None:
    try:
        name = TopicName.parse(asking.topic.strip(), example=DEFAULT_TOPIC)
    except TopicError as error:
        raise CliError(f"--topic: {error.problem}.", error.fix) from None
    trust = settings.load_trust().within(name.tenant)
    question = Question(service=asking.service or "", part=part, stats=True)

    async def ask(broker: ConfigBroker) -> bool:
        found = await collect(broker, str(name), question, asking.wait, trust)
        if asking.json:
            print_json([msgspec.to_builtins(each) for each in found])
        elif found:
            show(found).print()
        else:
            what = f"No instance of '{excerpt(question.service)}'" if question.service else "No service"
            print_out(f"{what} answers on {name}. 'dispatch serve' starts one.")
        return bool(found)

    _repeat(settings, "dispatch ping", ask, asking)


def _repeat(settings: Settings, command: str, ask: Callable[[ConfigBroker], Awaitable[bool]], asking: Asking) -> None:
    """Call ``ask``: with ``--watch`` every :data:`WATCH_S` until Ctrl-C, otherwise once, and exit with 1 if there was no
    answer."""

    async def run() -> bool:
        async with connect_broker(settings, command) as broker:
            while True:
                has_answers = await ask(broker)
                if not asking.watch:
                    return has_answers
                await asyncio.sleep(max(0.0, WATCH_S - asking.wait))

    if not run_async(run()):
        raise typer.Exit(Exit.FAILED)


def _run_fleet(settings: Settings, asking: Asking, name: str) -> None:
    try:
        topic = fleet_topic(name)
    except ValueError as error:
        problem = str(error).partition(";")[0]
        raise CliError(
            f"{problem[0].upper()}{problem[1:]}.", "give the name of connect(fleet=…), such as shop"
        ) from None

    async def ask(broker: ConfigBroker) -> bool:
        reports, table = await ask_fleet(broker, topic, max(asking.wait, MIN_FLEET_WAIT_S))
        if asking.json:
            print_json({"members": msgspec.to_builtins(reports), "table": msgspec.to_builtins(table)})
        elif reports:
            show_fleet(reports, table)
        else:
            print_out(f"No dispatcher of the fleet '{name}' answers on {topic}. Use connect(fleet={name!r}).")
        return bool(reports)

    _repeat(settings, "dispatch stats", ask, asking)


async def ask_fleet(broker: ConfigBroker, topic: str, wait: float) -> tuple[dict[str, Report], Table | None]:
    """Return the newest report of each member, and the newest table."""
    reports: dict[str, Report] = {}
    tables: list[Table] = []

    def receive(payload: bytes) -> None:
        message = decode(payload)
        if isinstance(message, Table):
            if not tables or message.is_after(tables[0]):
                tables[:] = [message]
        elif isinstance(message, Report):
            needs = {**(reports[message.member].needs if message.member in reports else {}), **message.needs}
            reports[message.member] = msgspec.structs.replace(message, needs=needs)

    subscription = await broker.subscribe(topic, receive)
    try:
        await broker.publish(topic, msgspec.json.encode(Ask()))
        await asyncio.sleep(wait)
    finally:
        await subscription.close()
    return dict(sorted(reports.items())), tables[0] if tables else None


def show_fleet(reports: Mapping[str, Report], table: Table | None) -> None:
    members = [] if table is None else table.members
    Rows(
        {
            "dispatcher": [one_line(each.name) for each in reports.values()],
            "role": [
                "leader" if table is not None and id == table.leader else "member" if id in members else "joining"
                for id in reports
            ],
            "open circuits": [one_line(", ".join(each.open)) or "-" for each in reports.values()],
        },
        style="cyan",
    ).print()
    keys = sorted({key for each in reports.values() for key in each.needs})
    if not keys or table is None:
        print_out("No limit with the scope fleet was used yet.")
        return
    rows: dict[str, list[str]] = {"limit": [], "of": [], "demand": [], "used or handed out": [], "shares": []}
    for key in keys:
        needs = [each.needs[key] for each in reports.values() if key in each.needs]
        kind, entry, limits = key.partition(":")[0], table.entries.get(key), sorted({each.limit for each in needs})
        rows["limit"].append(one_line(key))
        least, *larger = (f"{_format_number(limit)}{'/s' if kind == RATE else ''}" for limit in limits)
        rows["of"].append(f"{least} (elsewhere {', '.join(larger)})" if larger else least)
        rows["demand"].append(f"{_format_number(sum(each.demand for each in needs))}{'' if kind == SLOTS else '/s'}")
        rows["used or handed out"].append(f"{entry.reserved:,.0f}" if kind == QUOTA and entry is not None else "-")
        if kind == QUOTA:
            shares = [f"{need.used:,.0f} used" for need in needs]
        elif entry is None:
            shares = ["equal"]
        else:
            shares = [f"{share:.0%}" if kind == RATE else f"{share:.0f}" for share in entry.shares]
        rows["shares"].append(" ".join(shares))
    Rows(rows, style="cyan").print()


def _format_number(value: float) -> str:
    """Return a number with four digits, or more where a whole number has more."""
    return f"{value:,.0f}" if value >= 1_000 else f"{value:.4g}"


async def collect(
    broker: ConfigBroker, topic: str, question: Question, wait: float, trust: Trust
) -> list[WireInstance]:
    """Ask all services, or on its topic all processes with an admin endpoint, and return the instances that answer within
    ``wait`` seconds, sorted. Answers that are malformed are ignored.

    Raises:
        TransportError: the broker is out of reach, or refuses a topic.
    """
    found: dict[tuple[str, ...], WireInstance] = {}

    def receive(payload: bytes) -> None:
        with contextlib.suppress(MalformedAnnouncementError):
            message = decode_announcement(payload)
            ref = message.read_ref()
            has_answered = question.service in ("", ref.id) and message.stats is not msgspec.UNSET
            if message.announce == HERE and has_answered:
                instance = message.instance
                # What another process claims stands beside an instance, and does not replace it.
                key = ref.id, ref.version or "", instance.id, instance.labels.get(ADMIN_LABEL, "")
                answer = _read_instance(message, ref, payload, trust)
                if answer.is_signed or key not in found or not found[key].is_signed:
                    found[key] = answer

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
    stats = {} if message.stats is msgspec.UNSET else message.stats
    if is_deeper(stats, MAX_DEPTH):
        raise MalformedAnnouncementError("the statistics are nested too deeply")
    tools, has_signature = message.read_tools(), is_signed(payload, trust.keys)
    return WireInstance(
        ref.id,
        ref.version,
        message.instance.id,
        message.instance.incarnation,
        ref.request_queue,
        ref.response_queue,
        message.instance.labels,
        [name for tool in tools if isinstance(name := tool.get("name"), str)],
        stats,
        has_signature,
        untrusted,
        trust.list_ignored(message.read_service(), tools, is_signed=has_signature),
    )
