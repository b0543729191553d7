"""What every test shares: async tests on a virtual clock, and one genuine broker for the whole run."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import msgspec
import pytest

from dispatch.devtools.localbroker import (
    Endpoint,
    LocalBrokerUnavailableError,
    choose_backend,
    fetch_distribution,
    find_distribution,
    from_environment,
    obtain,
)
from dispatch.resilience.breaker.rules import complete_rules
from tests.helpers.prometheus_binaries import PrometheusMissing, find
from tests.helpers.run_profile import IN_CI

pytest_plugins = ["tests.helpers.asyncio_plugin"]


@pytest.fixture
def exact_breakers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breakers without jitter that close after one round of half-open calls: open times are those of the policy."""
    changes = {"jitter": 0.0, "half_open_rounds": 1}
    monkeypatch.setattr(
        "dispatch.resilience.breaker.breaker.complete_rules",
        lambda settings: msgspec.structs.replace(complete_rules(settings), **changes),
    )


def pytest_configure() -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # As shells have it for what they start in the background; what is told of Ctrl-C here must be true there, too.
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_sessionstart(session: pytest.Session) -> None:
    if hasattr(session.config, "workerinput"):
        return
    if IN_CI:
        for problem in (_unavailable(), _no_prometheus()):
            if problem is not None:
                pytest.exit(f"In CI every test must run.\n{problem}", returncode=1)
    shared = session.config.pluginmanager.hasplugin("dsession")
    wanted = shared and from_environment() is None and _unavailable() is None
    if wanted and choose_backend() == "process" and find_distribution() is None:
        # Once, and here: those who share the tests would do it side by side, and cannot say how far they are.
        fetch_distribution(_say)


def _say(line: str) -> None:
    print(f"[pulsar] {line}", flush=True)  # noqa: T201 - it takes a while: say what is going on


def _unavailable() -> LocalBrokerUnavailableError | None:
    if from_environment() is not None:
        return None
    try:
        choose_backend()
    except LocalBrokerUnavailableError as error:
        return error
    return None


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.pluginmanager.hasplugin("xdist"):
        items.sort(
            key=lambda item: item.get_closest_marker("long") is None
        )  # else they are what all wait for in the end
        for item in items:
            # One process has the broker of the run, and everything else goes on beside it; a module that has a broker of
            # its own has it once.
            if "pulsar_endpoint" in getattr(item, "fixturenames", ()) or _asks_for_the_broker(item.path):
                item.add_marker(pytest.mark.xdist_group("pulsar"))
            elif item.get_closest_marker("pulsar"):
                item.add_marker(pytest.mark.xdist_group(str(item.path)))
            elif item.get_closest_marker("prometheus") and item.get_closest_marker("wall_clock"):
                item.add_marker(pytest.mark.xdist_group("prometheus"))  # one that scrapes at a time
    _leave_out(config, items, "pulsar", "a genuine Pulsar", _unavailable)
    _leave_out(config, items, "prometheus", "a genuine Prometheus", _no_prometheus)


@cache
def _asks_for_the_broker(module: Path) -> bool:
    """Does it ask for it by name, while a test runs?"""
    return 'getfixturevalue("pulsar_endpoint")' in module.read_text(encoding="utf-8")


def _no_prometheus() -> Exception | None:
    try:
        find("prometheus")
        find("promtool")
    except PrometheusMissing as error:
        return error
    return None


def _leave_out(
    config: pytest.Config,
    items: list[pytest.Item],
    marker: str,
    what: str,
    missing: Callable[[], Exception | None],
) -> None:
    """Leave out the tests with that marker if what they need is not here, and say so in the end."""
    needing = [item for item in items if item.get_closest_marker(marker)]
    problem = missing() if needing else None
    if problem is None:
        return
    config.stash.setdefault(_missing, []).append(f"{len(needing)} tests did NOT run: they need {what}.\n{problem}")
    config.hook.pytest_deselected(items=needing)
    items[:] = [item for item in items if item not in set(needing)]


_missing = pytest.StashKey[list[str]]()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    problems = config.stash.get(_missing, [])
    if config.pluginmanager.hasplugin("dsession"):  # the tests are in other processes, which say nothing here
        missing = ((problem, "left out") for problem in (_unavailable(), _no_prometheus()) if problem is not None)
        problems = [f"Tests were {how}: they need what is missing here.\n{problem}" for problem, how in missing]
    for problem in problems:
        terminalreporter.section("something is missing", red=True, bold=True)
        terminalreporter.write_line(problem)


@pytest.fixture(scope="session")
def pulsar_endpoint(request: pytest.FixtureRequest) -> Iterator[Endpoint]:
    """A genuine broker with TrustGraph's tenant and namespaces, for the whole run."""
    capture = request.config.pluginmanager.getplugin("capturemanager")

    def report(line: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\n[pulsar] {line}", flush=True)  # noqa: T201 - a broker takes seconds: say what is going on

    with obtain(report=report) as endpoint:
        yield endpoint


@pytest.fixture
def strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test's services are none of ours: no time passes while the first call looks for some that are."""
    monkeypatch.setattr("dispatch.routing.channel.HELLO_WAIT_S", 0.0)
