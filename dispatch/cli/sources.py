"""One reading of several sources, merged as a dispatcher merges them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import sys
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

from dispatch._internal import join_names
from dispatch.catalog import (
    Catalog,
    CatalogError,
    Folder,
    Item,
    Problem,
    ServiceDescriptor,
    Severity,
    ToolDescriptor,
    check_items,
)
from dispatch.catalog.approvals import Approvals, ApprovalsError
from dispatch.catalog.catalog import fingerprint, service_fingerprint
from dispatch.catalog.merge import Merged, Merger
from dispatch.catalog.sources import Source
from dispatch.cli.base import CliError, Exit, Settings, colorize, format_count, make_printable, print_err, run_async
from dispatch.errors import DispatchError
from dispatch.transports import open_transport
from dispatch.trustgraph.client import ConfigBroker
from dispatch.trustgraph.config import ConfigServiceError, TrustGraphConfig

_log = logging.getLogger("dispatch.catalog")

ReadError = CatalogError | ConfigServiceError | DispatchError


class Snapshot(NamedTuple):
    """The items of several sources at one moment.

    Attributes:
        merged: the catalogue, with a report for each source.
        problems: all problems by the source's id.
        failures: of sources that deliver nothing, by their id.
    """

    merged: Merged
    problems: Mapping[str, Sequence[Problem]]
    failures: Mapping[str, ReadError]

    @property
    def catalog(self) -> Catalog:
        """The services and tools in force."""
        return self.merged.catalog

    def require_all(self) -> Snapshot:
        """Return this snapshot if every source could be read.

        Raises:
            CatalogError: a folder is invalid.
            CliError, DispatchError: TrustGraph's configuration is out of reach.
        """
        for error in self.failures.values():
            raise error_of_config_service(error) if isinstance(error, ConfigServiceError) else error
        return self

    def log_warnings(self) -> Snapshot:
        """Write the warnings of all sources to the log, and return this snapshot."""
        for problems in self.problems.values():
            for problem in problems:
                if problem.severity == "warning":
                    _log.warning("%s", problem)
        return self


def read_sources(
    sources: Sequence[Source], remote: Mapping[str, Sequence[Item] | ReadError] = MappingProxyType({})
) -> Snapshot:
    """Read the folders among ``sources``, and merge all of them.

    Args:
        sources: the highest precedence first.
        remote: what the others delivered, by their id.

    Raises:
        CliError: one is given twice.
    """
    require_distinct(sources)
    merger = Merger()
    problems: dict[str, list[Problem]] = {source.id: [] for source in sources}
    failures: dict[str, ReadError] = {}
    local: dict[str, Sequence[Item]] = {}
    for source in sources:
        merger.add_source(source.id, is_atomic=bool(getattr(source, "is_atomic", False)))
        if isinstance(source, Folder):
            reading = source.read()
            problems[source.id] += reading.problems
            if reading.has_errors:
                failures[source.id] = CatalogError([*reading.problems, *check_items(reading.items)[1]])
            else:
                local[source.id] = reading.items
    failures |= {id: found for id, found in remote.items() if isinstance(found, Exception)}
    # The folders first, as a dispatcher does.
    for found in (local, {id: items for id, items in remote.items() if not isinstance(items, Exception)}):
        for id, refused in merger.set_all_items(found).items():
            failures[id] = CatalogError([*problems[id], *refused])
    for id, error in failures.items():
        if isinstance(error, CatalogError):
            problems[id] = list(error.problems)
        else:
            problems[id] = [Problem(id, "", str(error), "check the connection with 'dispatch doctor'")]
    merged = merger.merge()
    origins = {item.origin: id for id in merger.order for item in merger.items(id)}
    for problem in merged.problems:
        problems[origins[problem.file]].append(problem)
    return Snapshot(merged, problems, failures)


def load_catalog(settings: Settings) -> Catalog:
    """Load the catalogue of all folders; warnings go to the log. Where two folders have a tool of the same name, that of the
    first one is used.

    Raises:
        CliError: no folder is given, or one is given twice.
        CatalogError: one is invalid.
    """
    folders = [Folder(folder) for folder in settings.require_catalog_folders()]
    return read_sources(folders).require_all().log_warnings().catalog


def require_distinct(sources: Sequence[Source]) -> None:
    """Check that no source is given twice.

    Raises:
        CliError: one is.
    """
    ids = [source.id for source in sources]
    for id in ids:
        if ids.count(id) > 1:
            raise CliError(f"'{id}' is given twice.", "give each source once")


def error_of_config_service(error: ConfigServiceError) -> CliError:
    """Return the error of a command for an error of TrustGraph's config service."""
    return CliError(
        str(error),
        "check with 'dispatch doctor' that the broker is in reach, and that TrustGraph's config service runs there",
        Exit.TRANSPORT,
    )


# The sources that the options of a command name, and the connection of those that need the broker.


T = TypeVar("T")

PROGRESS_AFTER_S: Final = 2.0
"""Seconds after which a command says what it waits for."""


def list_sources(settings: Settings, *, watch: bool = False) -> list[Source]:
    """Return the sources, the highest precedence first. TrustGraph's configuration is not connected yet.

    Raises:
        CliError: there is none, or one is given twice, or the workspace is reserved.
    """
    workspace = settings.trustgraph_workspace
    folders = settings.require_catalog_folders() if workspace is None else settings.catalog_folders
    sources: list[Source] = [Folder(path, watch=watch) for path in folders]
    require_distinct(sources)
    if workspace is not None:
        sources.append(make_trustgraph_config(workspace))
    return sources


def make_trustgraph_config(workspace: str) -> TrustGraphConfig:
    """Return TrustGraph's configuration as a source.

    Raises:
        CliError: the workspace is reserved.
    """
    try:
        return TrustGraphConfig(workspace)
    except ValueError as error:
        raise CliError(str(error)) from None


@contextlib.asynccontextmanager
async def connect_sources(settings: Settings, sources: Sequence[Source], command: str) -> AsyncIterator[None]:
    """Connect the sources that need the broker, and close them afterwards.

    Raises:
        CliError: the broker is the embedded one.
        TransportError: no broker answers.
    """
    remote = [source for source in sources if isinstance(source, TrustGraphConfig)]
    if not remote:
        yield
        return
    async with contextlib.AsyncExitStack() as stack:
        transport = open_transport(settings.require_pulsar_url(command), security=settings.security())
        stack.push_async_callback(transport.close)
        await transport.start()
        broker = ConfigBroker(transport, f"cli-{secrets.token_hex(4)}")
        stack.push_async_callback(broker.close)
        for source in remote:
            source.connect(broker)
            stack.push_async_callback(source.close)
        yield


def read_given_sources(settings: Settings, command: str) -> Snapshot:
    """Read all given sources once. The snapshot has the failures of sources.

    Raises:
        CliError: there is none, or one is given twice, or the broker is the embedded one.
    """
    sources = list_sources(settings)
    remote: dict[str, Sequence[Item] | ReadError] = {}

    async def read_remote(source: Source) -> None:
        try:
            async with connect_sources(settings, [source], command):
                remote[source.id] = await source.discover()
        except (CatalogError, ConfigServiceError, DispatchError) as error:
            remote[source.id] = error

    for source in sources:
        if not isinstance(source, Folder):
            run_with_progress(
                read_remote(source), f"Reading TrustGraph's configuration through {settings.broker_url} …"
            )
    return read_sources(sources, remote)


def run_with_progress(main: Coroutine[Any, Any, T], text: str, has_started: Callable[[], bool] | None = None) -> T:
    """Run ``main``. If it takes longer than :data:`PROGRESS_AFTER_S`, print ``text`` to stderr.

    Args:
        main: to run.
        text: for people.
        has_started: whether the text would be late, although ``main`` has not ended.

    Raises:
        CliError: TrustGraph's config service does not answer, or with an error.
    """

    def announce() -> None:
        if has_started is None or not has_started():
            print_err(colorize(text, "dim", sys.stderr))

    async def run() -> T:
        timer = asyncio.get_running_loop().call_later(PROGRESS_AFTER_S, announce)
        try:
            return await main
        finally:
            timer.cancel()

    try:
        return run_async(run())
    except ConfigServiceError as error:
        raise error_of_config_service(error) from None


# Definitions that wait for approval, as far as the file of approved ones shows.


class HeldDefinition(NamedTuple):
    """A definition that differs from the approved ones.

    Attributes:
        kind: ``tool`` or ``tool-service``.
        name: of the tool, or id of the service.
        source: id of its source.
        approved: fingerprints in the file.
        present: fingerprints of all versions that the source delivers.
        versions: their descriptors, highest version first.
    """

    kind: str
    name: str
    source: str
    approved: frozenset[str]
    present: tuple[str, ...]
    versions: tuple[ToolDescriptor | ServiceDescriptor, ...]

    @property
    def key(self) -> str:
        """Its key in the file of approved definitions."""
        return f"{self.kind}/{self.name}"

    @property
    def waiting(self) -> tuple[str, ...]:
        """The fingerprints that are not approved."""
        return tuple(print for print in self.present if print not in self.approved)


def find_held(catalog: Catalog, approved: Mapping[str, frozenset[str]]) -> Iterator[HeldDefinition]:
    """Yield the services and tools of ``catalog`` that are not approved in their present definition. The first definition
    of a name needs no approval.

    Args:
        catalog: what the sources deliver.
        approved: fingerprints by ``tool/NAME`` and ``tool-service/ID``.
    """
    for id in catalog.services:
        known = approved.get(f"tool-service/{id}")
        if known is not None:
            services = catalog.service_versions(id)
            prints = tuple(map(service_fingerprint, services))
            if not known.issuperset(prints):
                yield HeldDefinition("tool-service", id, "", known, prints, services)
    for name in catalog.tools:
        known = approved.get(f"tool/{name}")
        if known is not None:
            tools = catalog.versions(name)
            prints = tuple(fingerprint_tool(catalog, tool) for tool in tools)
            if not known.issuperset(prints):
                yield HeldDefinition("tool", name, catalog.source_of(name), known, prints, tools)


def fingerprint_tool(catalog: Catalog, tool: ToolDescriptor) -> str:
    """Return the fingerprint of a tool with the service that it uses."""
    return fingerprint(tool, catalog.service_or_default(tool))


def load_approved(path: str | None) -> Mapping[str, frozenset[str]]:
    """Return the approved fingerprints in the file ``path``; none without a file.

    Raises:
        CliError: the file cannot be used.
    """
    if path is None:
        return {}
    try:
        return Approvals(path).load()
    except ApprovalsError as error:
        raise CliError(str(error), code=Exit.FAILED) from None


def select_held(
    names: Sequence[str], held: Sequence[HeldDefinition], catalog: Catalog, file: str
) -> list[HeldDefinition]:
    """Return the held definitions with these names, and those of the services of these tools.

    Raises:
        CliError: a name is not held; the error has the names that are.
    """
    by_key = {each.key: each for each in held}
    selected: dict[str, HeldDefinition] = {}
    for name in names:
        found = {key: by_key[key] for key in (f"tool/{name}", f"tool-service/{name}", name) if key in by_key}
        if not found:
            known = tuple(dict.fromkeys(each.name for each in held))
            waiting = f"held are {join_names(known)}" if known else f"nothing is held, as far as {file} shows"
            raise CliError(
                f"'{name}' is not held, so nothing was approved; {waiting}.",
                "'dispatch tools --all' lists what is held; give the sources as the dispatcher has them",
            )
        for each in found.values():
            if each.kind == "tool" and name in catalog.tools:
                service = by_key.get(f"tool-service/{catalog.tools[name].service}")
                if service is not None:
                    selected[service.key] = service
        selected |= found
    return list(selected.values())


# The problems of one source, for ``dispatch check``.


_SEVERITIES: Final[Mapping[Severity, str]] = {"error": "error", "warning": "warning", "info": "note"}


class CheckedSource(NamedTuple):
    """A source with its problems.

    Attributes:
        id: of the source.
        problems: of its items, those that are shadowed among them.
        is_loaded: its items can be used, except those that are refused.
        services, tools: numbers in force.
    """

    id: str
    problems: Sequence[Problem]
    is_loaded: bool
    services: int
    tools: int

    @property
    def label(self) -> str:
        """Its name for people."""
        return self.id.removeprefix("folder:")

    def summary(self, problems: Iterable[Problem]) -> str:
        """Return one line with the numbers of ``problems``."""
        return format_summary(self.label, problems, (self.services, self.tools) if self.is_loaded else None)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for ``--json``."""
        return {"source": self.id, "ok": self.is_loaded, "services": self.services, "tools": self.tools}


def list_checked_sources(snapshot: Snapshot) -> list[CheckedSource]:
    """Return all sources of a snapshot in their order."""
    catalog = snapshot.catalog
    checked = []
    for id, report in snapshot.merged.reports.items():
        services = len(catalog.services) if len(snapshot.merged.reports) == 1 else report.items - report.tools
        tools = sum(catalog.source_of(name) == id for name in catalog.tools)
        shadowed = [
            Problem(
                each.origin,
                "",
                f"'{each.name}' is shadowed: the earlier source {each.active_source} has it ({each.active_origin})",
                "rename one of them, or remove it",
                "warning",
            )
            for each in report.shadowed
        ]
        problems = [*snapshot.problems[id], *shadowed]
        checked.append(CheckedSource(id, problems, id not in snapshot.failures, services, tools))
    return checked


def format_summary(label: str, problems: Iterable[Problem], loaded: tuple[int, int] | None) -> str:
    """Return one line with the numbers of problems, services and tools.

    Args:
        label: of the source.
        problems: to count.
        loaded: numbers of services and tools; None: the source cannot be loaded.
    """
    counts = Counter(problem.severity for problem in problems)
    found = [
        f"{counts[severity]} {name}{'' if counts[severity] == 1 else 's'}"
        for severity, name in _SEVERITIES.items()
        if counts[severity]
    ]
    text = ", ".join(found) or "no mistakes"
    if loaded is None:
        return f"{make_printable(label)}: {text}. The catalogue cannot be loaded until the errors are fixed."
    services, tools = loaded
    return f"{make_printable(label)}: {format_count(services, 'service')}, {format_count(tools, 'tool')}, {text}."


# States of circuits in running processes, read from their metrics endpoints.


TIMEOUT_S: Final = 5.0
"""Seconds until a metrics endpoint must answer: half of the default scrape timeout of Prometheus."""
MAX_BYTES: Final = 64 * 1024 * 1024
"""Of one answer: some 200,000 series."""


def read_circuits(urls: Sequence[str], warn: Callable[[str], object] = lambda _: None) -> Mapping[str, str]:
    """Return the state of each tool's circuit by the tool's label: ``open``, or ``2 of 5 open`` if the circuits of several
    dispatchers differ.

    Args:
        urls: of metrics endpoints.
        warn: receives a text for each endpoint without a circuit.

    Raises:
        CliError: one cannot be read.
    """
    from dispatch.telemetry.gauges import parse_circuit_states

    states: dict[str, Counter[str]] = {}
    for url in urls:
        text = _fetch(url)
        has_circuits = False
        try:
            for tool, state, number in parse_circuit_states(text):
                states.setdefault(tool, Counter())[state] += number
                has_circuits = True
        except ValueError as error:
            raise CliError(
                f"The answer of {url} is {error}.", "give the URL of a metrics endpoint", Exit.TRANSPORT
            ) from None
        if not has_circuits:
            warn(
                f"The metrics at {url} have no circuits: that process is no agent, or has called no tool yet. Give the "
                "endpoint of a process that calls tools, not that of a tool service."
            )
    return {tool: _describe(counts) for tool, counts in states.items()}


def _describe(counts: Counter[str]) -> str:
    total = counts.total()
    others = [(state, number) for state, number in counts.items() if number and state != "closed"]
    if not others:
        return "closed"
    return ", ".join(state if number == total else f"{number} of {total} {state}" for state, number in others)


def _fetch(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise CliError(f"'{url}' is no URL of a metrics endpoint.", "write --metrics http://HOST:PORT/metrics")
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            content: bytes = answer.read(MAX_BYTES)
    except (OSError, ValueError) as error:  # a URLError is an OSError
        reason = getattr(error, "reason", error)
        raise CliError(
            f"The metrics at {url} cannot be read: {reason}.",
            "give the URL of the metrics endpoint of a running agent (docs/how-to/observe.md)",
            Exit.TRANSPORT,
        ) from None
    return content.decode(errors="replace")
