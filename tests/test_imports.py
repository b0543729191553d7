"""Layers and packages (docs/architecture.md): imports point downwards, checked by one table over package names."""

from __future__ import annotations

import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

import dispatch
from structure.layers import (
    LAYER_OF,
    MAY_MEET,
    find_imports,
    find_modules,
    package_of,
    read_imports,
)

ROOT = Path(dispatch.__file__).parent

PURE = (
    "errors",
    "policy",
    "schemas",
    "protocol",
    "balancing",
    "resilience.breaker",
    "resilience.bulkhead",
    "resilience.durations",
    "resilience.fair_queue",
    "resilience.rate_limit",
    "resilience.retry",
    "messaging.wire",
    "calling.json_repair",
    "calling.parsing",
    "search.index",
    "search.vector_index",
    "toolkit.graph",
)
IMPURE = ("asyncio", "time", "datetime", "random", "secrets", "threading", "socket", "os", "logging", "pulsar")

FRAMEWORKS = ("langchain_core", "langgraph", "pydantic_ai", "agents", "google.adk", "crewai", "agent_framework")


MODULES = find_modules(ROOT)
IMPORTS = find_imports(MODULES)


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
    assert found in read_imports(source, module, is_package=module == "transports")


def test_every_package_has_a_layer() -> None:
    assert {package_of(module) for module in MODULES} <= LAYER_OF.keys()


def test_imports_point_downwards() -> None:
    upwards = []
    for each in IMPORTS:
        module, target = each.module, each.target
        importer, imported = package_of(module), package_of(target)
        here, there = LAYER_OF[importer], LAYER_OF[imported]
        if importer == imported or there < here or (there == here and here in MAY_MEET):
            continue
        if each.is_factory:
            continue
        upwards.append(f"{module} -> {target}")
    assert upwards == []


def test_packages_form_no_cycle() -> None:
    graph: dict[str, set[str]] = {}
    for each in IMPORTS:
        importer, imported = package_of(each.module), package_of(each.target)
        # Users import `dispatch` itself.
        if importer != imported and imported and not each.is_type and not each.is_factory:
            graph.setdefault(importer, set()).add(imported)
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError


def test_routing_and_serving_meet_on_the_wire_only() -> None:
    both = {("routing", "serving"), ("serving", "routing")}
    assert not [each for each in IMPORTS if (package_of(each.module), package_of(each.target)) in both]


def test_the_top_level_has_few_modules() -> None:
    assert len([name for name in MODULES if name and "." not in name and MODULES[name].name != "__init__.py"]) <= 6


@pytest.mark.parametrize("module", [name for name in MODULES if any(f"{name}.".startswith(f"{p}.") for p in PURE)])
def test_pure_cores_use_no_loop_clock_chance_or_io(module: str) -> None:
    path = MODULES[module]
    names = {name.split(".")[0] for name in read_imports(path.read_text("utf-8"), module)}
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
        ("pulsar", ("transports.pulsar.client",)),
        ("typer", ("cli",)),
        ("rich", ("cli",)),
        ("opentelemetry.sdk", ()),
        ("opentelemetry", ("telemetry",)),
        ("prometheus_client", ("telemetry",)),
        ("semver", ("catalog.versions",)),
        ("networkx", ("toolkit",)),
        ("jsonschema_rs", ("schemas",)),
        ("matplotlib", ("toolkit",)),
        ("docstring_parser", ("functions.schema",)),
        ("pydantic", ("adapters",)),
        ("mcp", ("mcp",)),
        *((framework, ("adapters",)) for framework in FRAMEWORKS),
        ("mcp_types", ("mcp",)),
        ("uvicorn", ("mcp.server",)),
        ("httpx2", ("mcp",)),
        ("anyio", ("mcp",)),
        ("numpy", ("search.vector_index", "search.embedding")),
        ("wordllama", ("search.embedding",)),
    ],
)
def test_a_library_is_imported_in_one_place(library: str, modules: tuple[str, ...]) -> None:
    for name, path in MODULES.items():
        if any(f"{name}.".startswith(f"{module}.") for module in modules):
            continue
        names = read_imports(path.read_text("utf-8"), name, is_package=path.name == "__init__.py")
        assert not [each for each in names if f"{each}.".startswith(f"{library}.")], f"{name} must not import {library}"


HEAVY = {
    "mcp",
    *FRAMEWORKS,
    "pulsar",
    "_pulsar",
    "prometheus_client",
    "typer",
    "rich",
    "opentelemetry.sdk",
    "semver",
    "yaml",
    "matplotlib",
    "networkx",
    "jsonschema_rs",
    "docstring_parser",
    "mcp_types",
    "uvicorn",
    "pydantic",
    "numpy",
    "wordllama",
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


@pytest.mark.parametrize("package", ["adapters", "calling", "toolkit"])
def test_packages_are_imported_on_their_first_use(package: str) -> None:
    assert getattr(dispatch, package).__name__ == f"dispatch.{package}"
