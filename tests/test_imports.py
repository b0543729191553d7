"""Who may look where (docs/architecture.md): read off the source, so that a room cannot quietly get a second door."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import dispatch

ROOT = Path(dispatch.__file__).parent
GROUND = ("messages", "outcome", "policy", "fairqueue", "delivery", "sessions", "version")
PURE = (
    *(
        "ages",
        "deadlines",
        "delivery",
        "doubling",
        "evicted",
        "fairqueue",
        "ledger",
        "pacing",
        "parts",
        "repair",
        "sessions",
        "transports.window",
    ),
    *("outcome", "policy", "messages", "guards", "balancing"),
)
FACES = ("client", "wrapped", "dialects", "plan", "testing", "cli", "demo", "__main__")
SERVING = (
    "service",
    "server",
    "replies",
    "presence",
    "idempotency",
    "ledger",
    "recall",
    "gathering",
    "answers",
    "work",
    "runner",
    "executor",
    "evicted",
)
PATH = (
    *(
        "dispatcher",
        "calls",
        "engine",
        "arguments",
        "addressing",
        "targets",
        "routes",
        "subscriptions",
        "underway",
        "acknowledger",
        "conclusion",
        "result",
        "tool",
    ),
    *("attempt", "attempts", "passage", "toolguards", "refusals", "fleet", "fleets", "keyholders"),
    *("retries", "hedges", "singleflight", "ratelimits", "bulkheads"),
)
SEAM = (
    *(
        "exchange",
        "pending",
        "settled",
        "transports",
        "gate",
        "instances",
        "retransmittable",
        "parted",
        "repair",
        "challenges",
    ),
    *("deadlines", "paced", "pacing"),
)


def modules() -> dict[str, Path]:
    """Every module of ours, by its name below ``dispatch`` (the package itself is ``""``)."""
    found = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(source: str, module: str, *, package: bool = False) -> set[str]:
    """Whole names of everything that a module's source imports, anywhere in it, types included."""
    here = ["dispatch", *(part for part in module.split(".") if part)]
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = here[: len(here) - node.level + package] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            found |= {base} | {f"{base}.{alias.name}" for alias in node.names}
    return found


IMPORTS = {
    name: imported(path.read_text(encoding="utf-8"), name, package=path.name == "__init__.py")
    for name, path in modules().items()
}


def within(name: str, rooms: tuple[str, ...]) -> bool:
    return any(name == room or name.startswith(f"{room}.") for room in rooms)


def those_in(*rooms: str) -> dict[str, set[str]]:
    found = {name: names for name, names in IMPORTS.items() if within(name, rooms)}
    assert found, f"there is no room called {rooms} any more: mend this test"
    return found


def ours(names: set[str]) -> set[str]:
    return {name.removeprefix("dispatch.") for name in names if name.startswith("dispatch.")}


def check(rooms: tuple[str, ...], forbidden: tuple[str, ...]) -> None:
    for name, names in those_in(*rooms).items():
        wrong = sorted(each for each in ours(names) if within(each, forbidden) and not within(each, (name,)))
        assert not wrong, f"dispatch/{name.replace('.', '/')}.py must not import {', '.join(wrong)}"


@pytest.mark.parametrize(
    ("source", "module", "found"),
    [
        ("import dispatch.policy", "gate", "dispatch.policy"),
        ("from dispatch import policy", "gate", "dispatch.policy"),
        ("from dispatch.policy import Policy", "gate", "dispatch.policy"),
        ("def later():\n    from dispatch.policy import Policy", "gate", "dispatch.policy"),
        ("if TYPE_CHECKING:\n    import dispatch.policy as p", "gate", "dispatch.policy"),
        ("from .policy import Policy", "gate", "dispatch.policy"),
        ("from . import policy", "gate", "dispatch.policy"),
        ("from ..policy import Policy", "transports.window", "dispatch.policy"),
        ("from .base import Mode", "transports", "dispatch.transports.base"),
        ("import asyncio.events", "gate", "asyncio.events"),
    ],
)
def test_every_way_to_import_is_seen(source: str, module: str, found: str) -> None:
    assert found in imported(source, module, package=module == "transports")


def test_a_forbidden_door_is_named_with_its_room() -> None:
    with pytest.raises(AssertionError, match=r"dispatch/routing/channel\.py must not import catalog"):
        check(("routes",), ("catalog",))


def test_the_ground_imports_nothing_of_ours() -> None:
    for name, names in those_in(*GROUND).items():
        others = {each for each in ours(names) if not within(each, (name.partition(".")[0],))}
        assert not others, f"{name} is the ground: it must not import {sorted(others)}"


def test_bookkeeping_is_pure() -> None:
    """No loop, no clock, no chance, no threads, no input and no output: a state machine drives it as it likes."""
    impure = ("asyncio", "time", "datetime", "random", "secrets", "threading", "socket", "os", "logging", "pulsar")
    for name, names in those_in(*PURE).items():
        assert not {each for each in names if within(each, impure)}, f"{name} is pure"


def test_guards_and_balancing_know_what_they_judge_by_and_nothing_else() -> None:
    for name, names in those_in("guards", "balancing").items():
        rooms = ("outcome", "policy", "guards.base", name.partition(".")[0])
        others = {each for each in ours(names) - {"guards"} if not within(each, rooms)}
        assert not others, f"{name} must not import {sorted(others)}"


def test_the_seam_knows_nothing_of_policies_tools_and_faces() -> None:
    check(SEAM, ("policy", "catalog", *PATH, *SERVING, *FACES, "localbroker"))


def test_only_the_path_and_the_service_tell_of_themselves() -> None:
    """Guards, balancing, the exchange and the transports have listeners and counts, and know nobody who listens."""
    check((*SEAM, *GROUND, "guards", "balancing", "catalog"), ("telemetry",))
    check(("telemetry",), (*FACES, "dispatcher", "calls", "engine", "attempts", *SERVING))


def test_transports_know_nothing_of_what_travels_over_them() -> None:
    check(("transports",), ("exchange", "pending", "settled", "gate", "delivery"))


def test_the_exchange_knows_the_seam_and_no_transport() -> None:
    check(("exchange", "pending", "gate"), ("transports.memory", "transports.pulsar"))


def test_the_catalog_knows_nothing_of_transports_and_calls() -> None:
    check(("catalog",), ("transports", *SEAM, *PATH, *SERVING, *FACES, "messages", "localbroker"))


def test_nothing_in_the_core_looks_at_a_face() -> None:
    check((*SEAM, *PATH, *SERVING, "catalog", *GROUND), (*FACES, "localbroker"))


def test_the_calling_side_and_the_serving_side_meet_on_the_wire_only() -> None:
    check(("service", "server", "replies"), ("exchange", "pending", *PATH))
    check(PATH, SERVING)


def test_the_local_broker_stands_alone() -> None:
    rest = tuple(name for name in IMPORTS if name and not within(name, ("localbroker",)))
    check(("localbroker",), rest)


@pytest.mark.parametrize(
    ("package", "rooms"),
    [
        ("pulsar", ("transports.pulsar.link", "transports.pulsar.logs", "transports.pulsar.reader")),
        ("typer", ("cli",)),
        ("rich", ("cli",)),
        ("opentelemetry.sdk", ()),
        ("opentelemetry", ("telemetry",)),
        ("prometheus_client", ("telemetry", "server")),  # the server names a type
    ],
)
def test_a_library_has_its_own_room(package: str, rooms: tuple[str, ...]) -> None:
    for name, names in IMPORTS.items():
        if not within(name, rooms):
            assert not {each for each in names if within(each, (package,))}, f"{name} must not import {package}"


HEAVY = {
    "pulsar",
    "_pulsar",
    "prometheus_client",
    "typer",
    "rich",
    "opentelemetry.sdk",
    "yaml",
    "matplotlib",
    "trustgraph",
}


@pytest.mark.parametrize(
    "use",
    [
        "import dispatch",
        "import dispatch; dispatch.connect('memory://'); dispatch.ToolServer",
        "import dispatch\ntry:\n    dispatch.connect('pulsar://no:port')\nexcept dispatch.TransportError:\n    pass",
    ],
)
def test_importing_dispatch_costs_nothing_that_is_not_used(use: str) -> None:
    script = f"{use}\nimport sys\nprint(*{HEAVY!r} & set(sys.modules))"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert ended.stdout.split() == []


def test_the_names_that_users_import_are_all_there() -> None:
    assert sorted(dispatch.__all__) == dispatch.__all__
    for name in dispatch.__all__:
        assert getattr(dispatch, name) is not None
