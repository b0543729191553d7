"""Imports and cycles, as the table of layers and the structure report see them."""

from __future__ import annotations

from pathlib import Path

from structure.layers import Import, find_cycles, find_imports, find_modules, find_package_cycles, read_imports


def write_package(folder: Path, files: dict[str, str]) -> Path:
    for name, source in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, "utf-8")
    return folder


def test_imports_name_the_module_that_is_meant(tmp_path: Path) -> None:
    root = write_package(
        tmp_path,
        {
            "__init__.py": "",
            "policy/__init__.py": "class Policy: ...",
            "policy/rate.py": "class Rate: ...",
            "calls/__init__.py": "",
            "calls/call.py": "from dispatch.policy import Policy, rate\nfrom dispatch.policy.rate import Rate\nimport json",
            "calls/attempt.py": "from . import call\nif TYPE_CHECKING:\n    from ..policy.rate import Rate",
        },
    )
    assert find_imports(find_modules(root)) == [
        Import("calls.attempt", "calls.call", is_type=False),
        Import("calls.attempt", "policy.rate", is_type=True),
        Import("calls.call", "policy", is_type=False),
        Import("calls.call", "policy.rate", is_type=False),
    ]


def test_a_type_import_that_is_also_executed_is_no_type_import(tmp_path: Path) -> None:
    source = "if TYPE_CHECKING:\n    import dispatch.b\ndef later():\n    import dispatch.b"
    root = write_package(tmp_path, {"a.py": source, "b.py": ""})
    assert find_imports(find_modules(root)) == [Import("a", "b", is_type=False)]


def test_names_are_read_with_their_packages() -> None:
    assert read_imports("from .base import Mode", "transports", is_package=True) == {
        "dispatch.transports.base",
        "dispatch.transports.base.Mode",
    }


def test_every_cycle_is_found_once() -> None:
    edges = [("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("d", "e"), ("e", "d"), ("e", "f")]
    assert find_cycles(edges) == [["a", "b", "c"], ["d", "e"]]
    assert find_cycles([("a", "b"), ("b", "c"), ("a", "c")]) == []


def test_a_sub_package_is_one_node_of_its_package() -> None:
    imports = [
        Import("catalog.loader", "catalog.readers.tool", is_type=False),
        Import("catalog.readers.service", "catalog.loader", is_type=False),
    ]
    assert find_package_cycles(imports) == [["catalog.loader", "catalog.readers"]]


def test_packages_of_different_layers_can_form_a_cycle() -> None:
    imports = [
        Import("calls.call", "routing.instance", is_type=False),
        Import("routing.channel", "calls.attempt", is_type=False),
        Import("messaging.wire.codec", "errors", is_type=False),
        Import("messaging.rpc.pending", "messaging.wire.codec", is_type=False),
    ]
    assert find_package_cycles(imports) == [["calls", "routing"]]
