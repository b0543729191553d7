"""``dispatch tail``, ``dispatch calls`` and ``dispatch calls show``: the calls of running dispatchers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final, NamedTuple
from urllib.parse import quote, urlencode

import typer

from dispatch._internal import cancel_and_wait, excerpt, find_near_names, join_alternatives
from dispatch.admin.api import Call, CallDetails, Process, Tool
from dispatch.cli.admin import IDENTITY, AdminEndpoint, AdminError, Endpoints, Fleet, find_fleet
from dispatch.cli.base import (
    CliError,
    Exit,
    Rows,
    Settings,
    console,
    print_err,
    print_json,
    print_out,
    print_warning,
    require_seconds,
    run_async,
    suggest,
    with_settings,
)
from dispatch.cli.screen import NAME_CHARS, TABLES, Row, call_line, one_line, waterfall
from dispatch.errors import Outcome

_RUNNING: Final = "name the URL of a running dispatcher, or start one with connect(admin=…) or --admin HOST:PORT"
RETRY_S: Final = 2.0
"""Seconds until a stream that has ended is opened again."""
REMEMBERED: Final = 2_000
"""Calls of a process that are remembered, so that none is shown twice: twice the calls that it remembers itself."""


@dataclass(frozen=True)
class WantedCalls:
    """Which calls a command shows.

    Attributes:
        tool (NAME): Only calls of this tool.
        user (USER): Only calls of this user.
        outcome (OUTCOME): Only calls with this outcome, as timeout.
        failed: Only calls that did not succeed.
        slower_than (SECONDS): Only calls that took longer.
    """

    tool: str = ""
    user: str = ""
    outcome: str = ""
    failed: bool = False
    slower_than: Annotated[float | None, typer.Option(min=0)] = None

    def query(self) -> dict[str, str]:
        """Return the parameters of a request for them.

        Raises:
            CliError: one of them is invalid.
        """
        known = [str(each) for each in Outcome]
        outcome = self.outcome.replace("-", "_")
        if outcome and outcome not in known:
            fix = suggest(find_near_names(outcome, known, 1), f"use {join_alternatives(known)}")
            raise CliError(f"--outcome '{self.outcome}' is unknown.", fix)
        slower_than = "" if self.slower_than is None else f"{self.slower_than:g}"
        if self.slower_than is not None:
            require_seconds("--slower-than", self.slower_than, "0.5")
        failed = "1" if self.failed else ""
        given = {**asdict(self), "outcome": outcome, "failed": failed, "slower_than": slower_than}
        return {name: value for name, value in given.items() if value}


@with_settings("broker", "token_file", "trust_certs", "trust")
def tail(
    settings: Settings,
    endpoints: Endpoints,
    wanted: WantedCalls,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, max=1000)] = 10,
    json: bool = False,
) -> None:
    """Print a line for each call as it ends, until Ctrl-C.

    When, outcome, duration, tool, user, instance, id of the call; then what else there is to know: type of the error,
    attempts, and whether the tool may have run.

    [bold]dispatch tail 9464 --failed[/bold]

    [bold]dispatch tail 9464 --tool price --slower-than 0.5[/bold]

    [bold]dispatch calls show ID 9464[/bold] shows one of them in detail.

    Args:
        lines (COUNT): Former calls to begin with.
        json: Print each call as one line of JSON.
    """
    run_async(_tail(settings, endpoints, wanted.query(), lines, json))


async def _tail(settings: Settings, given: Endpoints, query: Mapping[str, str], lines: int, json: bool) -> None:
    dispatchers = await _find_dispatchers(settings, given)
    names = dispatchers.names
    target = console()

    def show(call: Row, url: str) -> None:
        if json:
            print_json({**call, "process": names[url], "url": url})
        else:
            target.print(call_line(call, names[url] if len(names) > 1 else ""), soft_wrap=True)

    answers = await dispatchers.ask_each(_path("/api/calls", query, limit=1000), list[Call])
    former = [(call, url) for url, calls in answers for call in calls]
    seen: dict[str, dict[tuple[Any, ...], None]] = {url: {} for url in names}
    for call, url in former:
        seen[url][_key(call)] = None
    former.sort(key=lambda found: found[0]["at"] + found[0]["duration"])
    for call, url in former[-lines:] if lines else ():
        show(call, url)
    if not former:
        await dispatchers.warn_of_unknown_tool(query)
        what = "No call matches yet" if query else "No call has ended yet"
        print_err(f"{what}. Calls are printed as they end, until Ctrl-C.")

    async def follow(endpoint: AdminEndpoint) -> AdminError:
        """Show calls until the process refuses to tell them; return the refusal."""
        known = seen[endpoint.url]

        def show_new(calls: Sequence[Row]) -> None:
            for call in calls:
                if _key(call) not in known:
                    known[_key(call)] = None
                    show(call, endpoint.url)
                    if len(known) > REMEMBERED:
                        del known[next(iter(known))]

        is_reported = False
        while True:
            try:
                async for call in endpoint.follow(_path("/api/calls/stream", query), Call):
                    if call is None:  # it is open: calls that ended before it was
                        if is_reported:
                            print_err(f"{endpoint.url} answers again.")
                        is_reported = False
                        show_new((await endpoint.get(_path("/api/calls", query, limit=1000), list[Call]))[::-1])
                    else:
                        show_new((call,))
            except AdminError as error:
                if error.status in (400, 401, 403):
                    if len(names) > 1:
                        print_warning(f"{error} Its calls are not shown.")
                    return error
                if not is_reported:
                    print_err(f"{error}. Trying again each {RETRY_S:g} s.")
                is_reported = True
            await asyncio.sleep(RETRY_S)

    tasks = [asyncio.ensure_future(follow(dispatchers.fleet.endpoints[url])) for url in names]
    try:
        refusals = await asyncio.gather(*tasks)
    finally:
        await cancel_and_wait(tasks)
    raise CliError(str(refusals[0]), code=Exit.FAILED)


def _key(call: Row) -> tuple[Any, ...]:
    return call["id"], call["at"]  # a restarted process begins with the first id again


def _path(path: str, query: Mapping[str, str], **more: int) -> str:
    given = urlencode({**query, **more}, errors="replace")
    return f"{path}?{given}" if given else path


class _Dispatchers(NamedTuple):
    """The dispatchers among the processes.

    Attributes:
        fleet: of the dispatchers.
        names: by their URL.
        problems: of the processes that do not answer, by their URL.
    """

    fleet: Fleet
    names: dict[str, str]
    problems: dict[str, str]

    async def ask_each(self, path: str, kind: Any) -> list[tuple[str, Any]]:
        """Return the answers to a GET request with the URLs of their processes. Those that do not answer are reported.

        Raises:
            CliError: none answers.
        """
        answers = await self.fleet.ask_each(path, kind)
        self.report(answers.refused)
        if not answers.found:
            raise CliError("No dispatcher answers.", _RUNNING, Exit.FAILED)
        return answers.found

    async def warn_of_unknown_tool(self, query: Mapping[str, str]) -> None:
        """Warn if no process has the tool of a ``query`` that has found no calls."""
        wanted = query.get("tool", "")
        if wanted:
            answers = await self.fleet.ask_each("/api/tools", list[Tool])
            known = {tool["name"] for _, tools in answers.found for tool in tools}
            if wanted not in known and not answers.refused:
                fix = suggest(find_near_names(wanted, known, 1), "'dispatch top' lists the tools.")
                print_warning(f"No process has a tool '{excerpt(wanted)}': {fix}")

    def report(self, refused: Mapping[str, AdminError]) -> None:
        """Warn of processes that do not answer."""
        for url, error in refused.items():
            print_warning(f"{error}")
            self.problems[url] = str(error)


async def _find_dispatchers(settings: Settings, given: Endpoints) -> _Dispatchers:
    """Return the dispatchers at the given endpoints, or those that announce themselves, and the peers that they name.

    Raises:
        CliError: there is none.
        TransportError: the broker is out of reach.
    """
    fleet = await find_fleet(settings, given)
    answers = await fleet.ask_each("/api/process", Process)
    once: dict[tuple[Any, ...], str] = {}  # a process may be given by several names of its host
    for url, process in answers.found:
        once.setdefault(tuple(process.get(key, url) for key in IDENTITY), url)
    chosen = set(once.values())
    dispatchers_found = ((url, process) for url, process in answers.found if process["kind"] == "dispatcher")
    names = {url: process["name"] for url, process in dispatchers_found if url in chosen}
    dispatchers = _Dispatchers(Fleet(fleet.endpoints[url] for url in names), names, {})
    if not answers.found and answers.refused:
        _, last = answers.refused.popitem()
        dispatchers.report(answers.refused)
        raise CliError(str(last), "" if last.status else _RUNNING, Exit.FAILED)
    dispatchers.report(answers.refused)
    if not names:
        raise CliError(
            "None of the processes is a dispatcher, and only dispatchers make calls.",
            "name the URL of an agent's process: connect(admin=…), or 'dispatch mcp --admin HOST:PORT'",
        )
    return dispatchers


@with_settings("broker", "token_file", "trust_certs", "trust")
def calls(
    settings: Settings,
    endpoints: Endpoints,
    wanted: WantedCalls,
    limit: Annotated[int, typer.Option(min=1, max=1000)] = 30,
    json: bool = False,
) -> None:
    """List the latest calls of running dispatchers, the latest one last.

    A dispatcher remembers 1,000 calls, and 200 failed ones longer than that.

    [bold]dispatch calls 9464 --failed[/bold]

    [bold]dispatch calls show ID 9464[/bold] shows one of them in detail.

    Args:
        limit (COUNT): Calls at most.
        json: Print the calls, and the processes that do not answer, as one line of JSON.
    """
    query = wanted.query()

    async def fetch() -> tuple[list[dict[str, Any]], dict[str, str]]:
        dispatchers = await _find_dispatchers(settings, endpoints)
        answers = await dispatchers.ask_each(_path("/api/calls", query, limit=limit), list[Call])
        found = [{**call, "process": dispatchers.names[url]} for url, calls in answers for call in calls]
        if not found:
            await dispatchers.warn_of_unknown_tool(query)
        return sorted(found, key=lambda call: call["at"])[-limit:], dispatchers.problems

    found, problems = run_async(fetch())
    if json:
        unreachable = [{"url": url, "problem": problem} for url, problem in problems.items()]
        print_json({"calls": found, "unreachable": unreachable})
    elif found:
        shown = [
            each for each in TABLES["calls"] if each.key != "process" or len({row["process"] for row in found}) > 1
        ]
        Rows({column.heading: [excerpt(column.cell(row), NAME_CHARS) for row in found] for column in shown}).print()
    else:
        print_out("No call matches." if query else "No call has ended yet.")


@with_settings("broker", "token_file", "trust_certs", "trust")
def show(settings: Settings, id: str, endpoints: Endpoints, json: bool = False) -> None:
    """Show the timeline of one call: waits and attempts, each with its instance, duration and outcome.

    [bold]dispatch calls show 8124 9464[/bold]

    Several processes may have calls with this id: those of the processes at URL are shown, otherwise all. The exit code is
    1 if no process knows it.

    Args:
        id (ID): Id of the call, its request id or its trace id.
        json: Print the call as one line of JSON.
    """

    async def fetch() -> list[dict[str, Any]]:
        dispatchers = await _find_dispatchers(settings, endpoints)
        answers = await dispatchers.fleet.ask_each(f"/api/calls/{quote(id, safe='', errors='replace')}", CallDetails)
        dispatchers.report({url: error for url, error in answers.refused.items() if error.status != 404})
        if not answers.found:
            raise CliError(
                f"No process knows the call '{excerpt(id)}'.",
                "'dispatch calls' lists the calls; a dispatcher remembers 1,000, and 200 failed ones",
                Exit.FAILED,
            )
        named = {AdminEndpoint(url).url for url in endpoints.urls or ()}
        # Each process counts its calls from 1: one of a process that was named is meant, others may have the same id.
        chosen = [each for each in answers.found if each[0] in named] or answers.found
        return [{**call, "process": dispatchers.names[url]} for url, call in chosen]

    found = run_async(fetch())
    if json:
        print_json(found)
        return
    target = console()
    for call in found:
        if len(found) > 1:
            target.print(one_line(f"process {call['process']}"), style="bold", markup=False)
        for line in waterfall(call, min(target.width, 120)):
            target.print(line, soft_wrap=True)
