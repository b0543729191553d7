"""What each module may import, beside the layers that import-linter checks (``make lint``)."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import grimp
import pytest

import dispatch
from benchmarks.figures import count_cycles

GRAPH = grimp.build_graph("dispatch", include_external_packages=True, cache_dir=None)
MODULES = sorted(module for module in GRAPH.modules if module.split(".")[0] == "dispatch")


def imports_of(module: str) -> set[str]:
    """Return everything that a module imports, anywhere in it; of libraries the top-level package."""
    return set(GRAPH.find_modules_directly_imported_by(module))


def is_in(module: str, packages: tuple[str, ...]) -> bool:
    return any(f"{module}.".startswith(f"dispatch.{package}.") for package in packages)


PURE = (
    "errors",
    "policy",
    "schemas",
    "protocol",
    "resilience.balancer",
    "resilience.breaker",
    "resilience.bulkhead",
    "resilience.durations",
    "resilience.instances",
    "resilience.rate_limit",
    "resilience.retry",
    "messaging.wire",
    "calling.json_repair",
    "calling.native",
    "calling.parsing",
    "search.index",
    "search.vector_index",
    "toolkit.graph",
)
IMPURE = ("asyncio", "time", "datetime", "random", "secrets", "threading", "socket", "os", "logging", "pulsar")

FRAMEWORKS = ("langchain_core", "langgraph", "pydantic_ai", "agents", "google", "crewai", "agent_framework")


@pytest.mark.parametrize("module", [name for name in MODULES if is_in(name, PURE)])
def test_pure_cores_use_no_loop_clock_chance_or_io(module: str) -> None:
    assert not imports_of(module) & set(IMPURE)


def test_no_modules_import_each_other_not_even_for_types_or_inside_functions() -> None:
    assert count_cycles() == []


def test_every_pure_core_exists() -> None:
    assert {f"dispatch.{name}" for name in PURE} <= set(MODULES)


def test_the_top_level_has_few_modules() -> None:
    plain = [name for name in MODULES if name.count(".") == 1 and not GRAPH.find_children(name)]
    assert len(plain) <= 12, "values that every package uses, the two interfaces, and the relay between them"


@pytest.mark.parametrize(
    ("library", "modules"),
    [
        ("pulsar", ("transports.pulsar.client",)),
        ("typer", ("cli",)),
        ("rich", ("cli",)),
        ("opentelemetry", ("telemetry",)),
        ("prometheus_client", ("telemetry",)),
        ("semver", ("catalog.versions",)),
        ("tenacity", ("resilience",)),
        ("aiolimiter", ("resilience.rate_limit",)),
        ("networkx", ("toolkit",)),
        ("jsonschema_rs", ("schemas",)),
        ("matplotlib", ("toolkit",)),
        ("docstring_parser", ("functions.schema",)),
        ("pydantic", ("adapters",)),
        ("mcp", ("mcp",)),
        *((framework, ("adapters",)) for framework in FRAMEWORKS),
        ("mcp_types", ("mcp",)),
        ("uvicorn", ("admin.http",)),
        ("starlette", ("admin", "mcp.server")),
        ("jinja2", ("admin.console",)),
        ("httpx2", ("mcp",)),
        ("anyio", ("mcp",)),
        ("numpy", ("search.vector_index", "search.wordllama_embedder")),
        ("wordllama", ("search.wordllama_embedder",)),
    ],
)
def test_a_library_is_imported_in_one_place(library: str, modules: tuple[str, ...]) -> None:
    assert [name for name in MODULES if library in imports_of(name) and not is_in(name, modules)] == []


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


def test_packages_and_names_are_imported_on_their_first_use() -> None:
    script = "import sys, dispatch\nprint(*(name for name in sys.modules if name.startswith('dispatch.')))"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert ended.stdout.split() == []
    for package in dispatch._PACKAGES:
        assert getattr(dispatch, package).__name__ == f"dispatch.{package}"
    assert {*dispatch._PACKAGES, *dispatch.__all__} <= {*dir(dispatch)}
    with pytest.raises(AttributeError, match="module 'dispatch' has no attribute 'conect'"):
        dispatch.conect  # noqa: B018 # its import is the test


def test_type_checkers_see_the_names_that_are_imported() -> None:
    assert dispatch.__file__ is not None
    stub = ast.parse(Path(dispatch.__file__).with_suffix(".pyi").read_text("utf-8"))
    seen = {
        (f"dispatch.{name.name}" if each.module == "dispatch" else each.module, name.asname)
        for each in stub.body
        if isinstance(each, ast.ImportFrom)
        for name in each.names
    }
    packages = {(f"dispatch.{name}", name) for name in dispatch._PACKAGES}
    assert seen == packages | {(f"dispatch.{module}", name) for name, module in dispatch._MODULES.items()}


def test_an_older_python_is_told_which_one_is_needed() -> None:
    """In a checkout, where pip has not refused it."""
    code = "import sys; sys.version_info = (3, 10, 13, 'final', 0); import dispatch"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "ImportError: dispatch needs Python 3.11 or newer" in found.stderr
