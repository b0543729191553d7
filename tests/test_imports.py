"""Layers and packages (docs/architecture.md): imports point downwards, checked by one table over package names."""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import dispatch

ROOT = Path(dispatch.__file__).parent

LAYERS: dict[int, tuple[str, ...]] = {
    1: ("errors", "result", "_internal", "_version", "policy", "messaging.wire", "telemetry"),
    2: ("transports", "resilience", "balancing", "catalog"),
    3: ("messaging",),
    4: ("routing", "serving"),
    5: ("calls",),
    6: (
        *("dispatcher", "tool", "trustgraph"),
        *("telemetry.observer", "telemetry.metrics", "telemetry.tracing", "telemetry.alerting"),
    ),
    7: ("cli", "devtools", "testing", "__main__", ""),
}
"""A package of one line may import those of lower layers, and within layers 1, 6 and 7 each other."""
MAY_MEET = (1, 6, 7)
LAYER_OF = {package: layer for layer, packages in LAYERS.items() for package in packages}

TYPES_ONLY = {
    # Until calls, pools and services report to an observer: what they count and trace has a type.
    ("calls", "telemetry.metrics"),
    ("calls", "telemetry.observer"),
    ("calls", "telemetry.tracing"),
    ("routing", "telemetry.metrics"),
    ("routing", "telemetry.observer"),
    ("serving", "telemetry.metrics"),
    ("serving", "telemetry.tracing"),
}
"""Upward imports that are for type checkers alone."""
FACTORIES = {"telemetry.settings"}
"""Modules that import an implementation when it is asked for: ``Telemetry.service_metrics`` and ``service_tracing``."""

PURE = (
    "messaging.wire",
    "messaging.flow.credit",
    "messaging.flow.doubling",
    "messaging.flow.pacer",
    "messaging.rpc.deadline_heap",
    "messaging.rpc.retransmission",
    "serving.clock_offset",
    "serving.deduplication.evicted_dispatchers",
    "serving.deduplication.request_history",
    "transports.publish_window",
    "_internal.fair_queue",
    "resilience.breaker",
    "resilience.attempt_timeout",
    "resilience.latency_histogram",
    "resilience.bulkhead.bulkhead",
    "resilience.bulkhead.wait_queue",
    "resilience.bulkhead.adaptive_limit",
    "resilience.rate_limit.limiter",
    "resilience.rate_limit.leaky_bucket",
    "resilience.rate_limit.user_buckets",
    "resilience.rate_limit.weighted_fair_queue",
    "resilience.retry.budget",
    "resilience.retry.decision",
    "resilience.hedging.decision",
    "balancing",
    "errors",
    "policy",
)
IMPURE = ("asyncio", "time", "datetime", "random", "secrets", "threading", "socket", "os", "logging", "pulsar")

LARGEST_PACKAGE = 12
CROWDED = {"devtools.localbroker": 17}
"""Packages that are still larger; a number may only fall."""


class Import(NamedTuple):
    """``module`` imports ``target``, both named below ``dispatch`` (the package itself is ``""``)."""

    module: str
    target: str
    is_type: bool


def find_modules() -> dict[str, Path]:
    """Every module, by its name below ``dispatch``."""
    found = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = find_modules()


def read_imports(source: str, module: str, *, is_package: bool = False) -> Iterator[tuple[str, bool]]:
    """Whole names of everything that ``source`` imports, anywhere in it, and whether that is for type checkers alone."""
    here = ["dispatch", *(part for part in module.split(".") if part)]
    tree = ast.parse(source)
    guarded = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, id(node) in guarded
        elif isinstance(node, ast.ImportFrom):
            above = here[: len(here) - node.level + is_package] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield base, id(node) in guarded
            for alias in node.names:
                yield f"{base}.{alias.name}", id(node) in guarded


def all_imports() -> Iterator[Import]:
    """Imports between modules of dispatch, each of the module that is really meant."""
    for name, path in MODULES.items():
        targets: dict[str, bool] = {}
        for target, is_type in read_imports(path.read_text("utf-8"), name, is_package=path.name == "__init__.py"):
            below = target.removeprefix("dispatch").removeprefix(".")
            if target.split(".")[0] == "dispatch" and below in MODULES and below != name:
                targets[below] = targets.get(below, True) and is_type
        for target, is_type in targets.items():
            # `from dispatch.package import module` names the package, too: that is no import of what it contains.
            if not any(other.startswith(f"{target}.") for other in targets) or target in ("", name):
                yield Import(name, target, is_type)


IMPORTS = list(all_imports())


def package_of(module: str) -> str:
    """The line of :data:`LAYERS` that a module belongs to."""
    parts = module.split(".")
    return next((name for name in (".".join(parts[:2]), parts[0]) if name in LAYER_OF), f"no layer has {module!r}")


@pytest.mark.parametrize(
    ("source", "module", "found"),
    [
        ("import dispatch.policy", "calls.call", "dispatch.policy"),
        ("from dispatch import policy", "calls.call", "dispatch.policy"),
        ("from dispatch.policy import Policy", "calls.call", "dispatch.policy"),
        ("def later():\n    from dispatch.policy import Policy", "calls.call", "dispatch.policy"),
        ("if TYPE_CHECKING:\n    import dispatch.policy as p", "calls.call", "dispatch.policy"),
        ("from ..policy import Policy", "calls.call", "dispatch.policy"),
        ("from .. import policy", "calls.call", "dispatch.policy"),
        ("from .base import Mode", "transports", "dispatch.transports.base"),
        ("import asyncio.events", "calls.call", "asyncio.events"),
    ],
)
def test_every_way_to_import_is_seen(source: str, module: str, found: str) -> None:
    assert found in {name for name, _ in read_imports(source, module, is_package=module == "transports")}


def test_every_package_has_a_layer() -> None:
    assert {package_of(module) for module in MODULES} <= LAYER_OF.keys()


def test_imports_point_downwards() -> None:
    upwards = []
    for module, target, is_type in IMPORTS:
        importer, imported = package_of(module), package_of(target)
        here, there = LAYER_OF[importer], LAYER_OF[imported]
        if importer == imported or there < here or (there == here and here in MAY_MEET):
            continue
        if (is_type and (importer, imported) in TYPES_ONLY) or (
            module in FACTORIES and imported.startswith("telemetry")
        ):
            continue
        upwards.append(f"{module} -> {target}")
    assert upwards == []


def test_every_exception_is_needed() -> None:
    seen = {(package_of(module), package_of(target)) for module, target, is_type in IMPORTS if is_type}
    assert seen >= TYPES_ONLY


def test_packages_form_no_cycle() -> None:
    graph: dict[str, set[str]] = {}
    for module, target, is_type in IMPORTS:
        importer, imported = package_of(module), package_of(target)
        if (
            importer != imported and imported and not is_type and module not in FACTORIES
        ):  # users import `dispatch` itself
            graph.setdefault(importer, set()).add(imported)
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError


def test_routing_and_serving_meet_on_the_wire_only() -> None:
    both = {("routing", "serving"), ("serving", "routing")}
    assert not [each for each in IMPORTS if (package_of(each.module), package_of(each.target)) in both]


def test_the_top_level_has_few_modules() -> None:
    assert len([name for name in MODULES if name and "." not in name and MODULES[name].name != "__init__.py"]) <= 6


def test_packages_are_small() -> None:
    sizes: dict[str, int] = {}
    for path in MODULES.values():
        name = ".".join(path.relative_to(ROOT).parent.parts)
        sizes[name] = sizes.get(name, 0) + 1
    assert {name: size for name, size in sizes.items() if size > LARGEST_PACKAGE} == CROWDED


@pytest.mark.parametrize("module", [name for name in MODULES if any(f"{name}.".startswith(f"{p}.") for p in PURE)])
def test_pure_cores_use_no_loop_clock_chance_or_io(module: str) -> None:
    path = MODULES[module]
    names = {name.split(".")[0] for name, _ in read_imports(path.read_text("utf-8"), module)}
    assert not names & set(IMPURE)


def test_every_pure_core_exists() -> None:
    assert [name for name in PURE if name not in MODULES] == []


def test_the_local_broker_stands_alone() -> None:
    others = [
        t for m, t, _ in IMPORTS if m.startswith("devtools.localbroker") and not t.startswith("devtools.localbroker")
    ]
    assert others == []


@pytest.mark.parametrize(
    ("library", "modules"),
    [
        ("pulsar", ("transports.pulsar.client", "transports.pulsar.client_logging", "transports.pulsar.reader")),
        ("typer", ("cli",)),
        ("rich", ("cli",)),
        ("opentelemetry.sdk", ()),
        ("opentelemetry", ("telemetry",)),
        ("prometheus_client", ("telemetry",)),
    ],
)
def test_a_library_is_imported_in_one_place(library: str, modules: tuple[str, ...]) -> None:
    for name, path in MODULES.items():
        if any(f"{name}.".startswith(f"{module}.") for module in modules):
            continue
        names = {each for each, _ in read_imports(path.read_text("utf-8"), name, is_package=path.name == "__init__.py")}
        assert not [each for each in names if f"{each}.".startswith(f"{library}.")], f"{name} must not import {library}"


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
