"""Configuration of all tests: the profile of the run, the order of the tests, and the Pulsar brokers that they share."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
from collections.abc import Callable, Generator, Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import httpcore2
import msgspec
import pulsar
import pytest
import uvicorn.server
from hypothesis import is_hypothesis_test

from benchmarks.harness.broker import Endpoint, provide_broker, read_environment
from dispatch.devtools import localbroker
from dispatch.devtools.localbroker import (
    VERSION,
    Admin,
    LocalBroker,
    LocalBrokerError,
    LocalBrokerUnavailableError,
    cache_dir,
    choose_launcher,
    create_namespaces,
    fetch_distribution,
    find_distribution,
)
from dispatch.resilience.breaker import complete_rules
from dispatch.transports.pulsar.client import client_logger
from tests.helpers.prometheus_binaries import PrometheusMissing, find
from tests.helpers.run_profile import IN_CI, is_long_profile, load_profile
from tests.helpers.secured_broker import SUPER_USER, SecuredBroker

MAX_ID = 80
"""Characters of a parameter in the id of a test."""

pytest_plugins = [
    "tests.helpers.asyncio_plugin",
    "tests.helpers.process_marker",
    "tests.helpers.global_state",
    "tests.helpers.workers",
]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--long-profile",
        action="store_true",
        help="run the tests that have a long form, with their long sizes (make test-long)",
    )


def pytest_configure(config: pytest.Config) -> None:
    load_profile(
        is_long=config.getoption("long_profile"),
        keep_hypothesis=config.getoption("--hypothesis-profile", None) is not None,
    )
    if not is_long_profile():
        # HotSpot's optimizing compiler pays off after minutes: without it, a start costs 5 s of CPU instead of 10 s.
        localbroker.JVM_OPTIONS += " -XX:TieredStopAtLevel=1"
    archive = _class_archive()
    if archive is not None and archive.exists():
        localbroker.JVM_OPTIONS += f" -XX:SharedArchiveFile={archive}"
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # Shells ignore SIGINT in the jobs that they start in the background; the tests of Ctrl-C need the default.
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_sessionstart(session: pytest.Session) -> None:
    if hasattr(session.config, "workerinput"):
        return
    if IN_CI:
        for problem in (_unavailable(), _no_prometheus()):
            if problem is not None:
                pytest.exit(f"Every test must run in CI.\n{problem}", returncode=1)
    is_controller = session.config.pluginmanager.hasplugin("dsession")
    is_broker_started = is_controller and read_environment() is None and _unavailable() is None
    if is_broker_started and choose_launcher() == "process" and find_distribution() is None:
        # The controller downloads Pulsar once; the workers would do it at the same time, and cannot show progress.
        fetch_distribution(_print_progress)
    if is_broker_started and choose_launcher() == "process":
        _archive_classes()


def _class_archive() -> Path | None:
    """Return where this Java keeps the classes of this Pulsar, loaded and verified. A start takes 4.8 s of processor time
    with them, and 7.5 s without.
    """
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(os.path.join(home, "bin", "java") if home else "java")
    if java is None:
        return None
    return cache_dir() / f"classes-{VERSION}-{os.stat(os.path.realpath(java)).st_mtime_ns}.jsa"


def _archive_classes() -> None:
    """Write the archive if it is missing, by a broker of its own: the workers' brokers use it."""
    archive = _class_archive()
    if archive is None or archive.exists():
        return
    _print_progress("archives Pulsar's classes, once on this machine")
    part = archive.with_suffix(f".{os.getpid()}")
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(LocalBrokerError):  # the tests report it
        patch.setattr(localbroker, "JVM_OPTIONS", f"{localbroker.JVM_OPTIONS} -XX:ArchiveClassesAtExit={part}")
        patch.setattr(localbroker, "STOP_GRACE", 60.0)  # it writes the archive while it ends
        LocalBroker.start().stop()
    if part.exists():
        part.replace(archive)


_directories = pytest.StashKey[dict[Path, pytest.Directory]]()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Keep one node for each folder: pytest 9.1 makes others for the folders beside a module that is an argument, and these
    are without the fixtures of their conftest.py (pytest's issue 14635, corrected in 9.2).
    """
    report = yield
    if isinstance(collector, pytest.Directory) and report.passed:
        known = collector.session.stash.setdefault(_directories, {})
        report.result = [
            known.setdefault(node.path, node) if isinstance(node, pytest.Directory) else node for node in report.result
        ]
    return report


@pytest.fixture(scope="session", autouse=True)
def pulsar_client_log() -> None:
    """pulsar-client logs where the first client of a process wants it: that must not be a client of a peer."""
    pulsar.Client("pulsar://127.0.0.1:1", logger=client_logger()).close()  # without a connection


@pytest.fixture(scope="session", autouse=True)
def shared_certificates() -> Iterator[None]:
    """Clients of HTTP share the certificates of the system: each would spend 0.08 s of CPU on reading them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(httpcore2, "default_ssl_context", cache(httpcore2.default_ssl_context))
        yield


@pytest.fixture(scope="session", autouse=True)
def prompt_http_servers() -> Iterator[None]:
    """uvicorn sleeps for 0.1 s at least twice before it stops: with 0.01 s, a test with two servers is 0.5 s shorter."""
    prompt = SimpleNamespace(**vars(asyncio))
    prompt.sleep = lambda delay: asyncio.sleep(min(delay, 0.01))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(uvicorn.server, "asyncio", prompt)
        yield


def _print_progress(line: str) -> None:
    print(f"[pulsar] {line}", flush=True)  # noqa: T201 - the progress of a download that takes a while


def _unavailable() -> LocalBrokerUnavailableError | None:
    if read_environment() is not None:
        return None
    try:
        choose_launcher()
    except LocalBrokerUnavailableError as error:
        return error
    return None


def pytest_make_parametrize_id(val: object) -> str | None:
    """Shorten the ids of long parameters: pytest-xdist sends all ids from each worker, and compares them."""
    if not isinstance(val, str | bytes) or len(val) <= MAX_ID:
        return None
    return f"{ascii(val[:MAX_ID])[:MAX_ID]}… {len(val)}"


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # Looking for one marker of a test costs as much as reading all of them.
    markers = {item: {mark.name for mark in item.iter_markers()} for item in items}
    _deselect_other_profile(config, items, markers)
    if config.pluginmanager.hasplugin("xdist"):
        if config.getoption("long_profile") and hasattr(config, "workerinput"):
            _deselect(config, items, [item for item in items if "alone" in markers[item]])
        for item in items:
            # A shared broker belongs to one worker, and so does a broker that a module starts for itself.
            if _uses_shared_broker(item):
                item.add_marker(pytest.mark.xdist_group(_shared_broker_of(item)))
            elif "secured_broker" in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.xdist_group("secured pulsar"))
            elif "pulsar" in markers[item]:
                item.add_marker(pytest.mark.xdist_group(str(item.path)))
            elif markers[item] >= {"prometheus", "wall_clock"}:
                item.add_marker(pytest.mark.xdist_group("prometheus"))  # one server that scrapes at a time
        # The largest units start first: a worker that begins one late is what the others wait for in the end.
        items.sort(key=lambda item: _start_order(item, markers[item]))
    for name, requirement, find_problem in (
        ("pulsar", "a Pulsar broker", _unavailable),
        ("prometheus", "Prometheus", _no_prometheus),
    ):
        _deselect_without(config, items, [item for item in items if name in markers[item]], requirement, find_problem)


def _deselect_other_profile(
    config: pytest.Config, items: list[pytest.Item], markers: dict[pytest.Item, set[str]]
) -> None:
    """Deselect what the profile does not run: soak tests are too long for the short one, and the long one repeats no test
    that has one size only.
    """
    if config.getoption("long_profile"):
        others = [item for item in items if not _has_long_form(item, markers[item])]
    else:
        others = [item for item in items if "soak" in markers[item]]
    _deselect(config, items, others)


def _start_order(item: pytest.Item, markers: set[str]) -> tuple[bool, bool, bool, bool]:
    """Return a sort key: tests of shared brokers, slow tests, tests of other brokers, tests that wait, all others."""
    shares_broker = _uses_shared_broker(item) or "secured_broker" in getattr(item, "fixturenames", ())
    waits = not markers.isdisjoint(("process", "wall_clock"))
    return not shares_broker, "slow" not in markers, "pulsar" not in markers, not waits


def _has_long_form(item: pytest.Item, markers: set[str]) -> bool:
    has_marker = not markers.isdisjoint(("long", "soak"))
    return has_marker or (isinstance(item, pytest.Function) and is_hypothesis_test(item.obj))


def _uses_shared_broker(item: pytest.Item) -> bool:
    return "pulsar_endpoint" in getattr(item, "fixturenames", ()) or _requests_shared_broker(item.path)


def _shared_broker_of(item: pytest.Item) -> str:
    """Return the group of the tests that share a broker: one broker for half of them, unless the environment names one."""
    if read_environment() is None and "integration/pulsar" in item.path.as_posix():
        return "pulsar-integration"
    return "pulsar"


@cache
def _requests_shared_broker(module: Path) -> bool:
    """Tell whether tests of the module request the broker by name while they run."""
    return 'getfixturevalue("pulsar_endpoint")' in module.read_text(encoding="utf-8")


def _no_prometheus() -> Exception | None:
    try:
        find("prometheus")
        find("promtool")
    except PrometheusMissing as error:
        return error
    return None


def _deselect_without(
    config: pytest.Config,
    items: list[pytest.Item],
    dependent: list[pytest.Item],
    requirement: str,
    find_problem: Callable[[], Exception | None],
) -> None:
    """Deselect these tests if this machine lacks their requirement, and report it at the end of the run."""
    problem = find_problem() if dependent else None
    if problem is None:
        return
    text = f"{len(dependent)} tests did NOT run: they need {requirement}.\n{problem}"
    config.stash.setdefault(_missing, []).append(text)
    _deselect(config, items, dependent)


def _deselect(config: pytest.Config, items: list[pytest.Item], deselected: list[pytest.Item]) -> None:
    if deselected:
        config.hook.pytest_deselected(items=deselected)
        others = set(deselected)
        items[:] = [item for item in items if item not in others]


_missing = pytest.StashKey[list[str]]()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    problems = config.stash.get(_missing, [])
    if config.pluginmanager.hasplugin(
        "dsession"
    ):  # the workers deselect the tests; their reports do not reach the controller
        missing = [problem for problem in (_unavailable(), _no_prometheus()) if problem is not None]
        problems = [f"Tests did NOT run: they need what this machine lacks.\n{problem}" for problem in missing]
    for problem in problems:
        terminalreporter.section("tests did not run", red=True, bold=True)
        terminalreporter.write_line(problem)


@pytest.fixture(scope="session")
def pulsar_endpoint(request: pytest.FixtureRequest) -> Iterator[Endpoint]:
    """A Pulsar broker with TrustGraph's tenant and namespaces, for all of its group (of this process)."""
    capture = request.config.pluginmanager.getplugin("capturemanager")

    def report(line: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\n[pulsar] {line}", flush=True)  # noqa: T201 - the progress of a start that takes seconds

    with provide_broker(report=report) as endpoint:
        yield endpoint


@pytest.fixture
def exact_breakers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breakers without jitter that close after one round of half-open calls: open times are those of the policy."""
    changes = {"jitter": 0.0, "half_open_rounds": 1}
    monkeypatch.setattr(
        "dispatch.resilience.breaker.complete_rules",
        lambda settings: msgspec.structs.replace(complete_rules(settings), **changes),
    )


@pytest.fixture(scope="session")
def secured_broker() -> Iterator[SecuredBroker]:
    """A Pulsar broker with tokens, permissions and TLS, and TrustGraph's tenant and namespaces, for the whole run."""
    with SecuredBroker.start_secured() as broker:
        create_namespaces(Admin(broker.web_url, broker.token(SUPER_USER)))
        yield broker


@pytest.fixture
def strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test's services are none of ours: no time passes while the first call looks for some that are."""
    monkeypatch.setattr("dispatch.routing.instance.HELLO_WAIT_S", 0.0)
    monkeypatch.setattr("dispatch.routing.instance.DISCOVERY_S", 0.0)


@pytest.fixture
def own_logging() -> Iterator[None]:
    """Restores what commands that run in this process set up for their logs."""
    loggers = [logging.getLogger(name) for name in ("dispatch", "dispatch.transport", "dispatch.audit")]
    before = [(logger, logger.level, list(logger.handlers)) for logger in loggers]
    yield
    for logger, level, handlers in before:
        logger.setLevel(level)
        logger.handlers[:] = handlers
