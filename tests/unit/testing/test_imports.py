"""dispatch.testing is imported by users' tests alone."""

from __future__ import annotations

import subprocess
import sys

from tests.test_imports import GRAPH


def test_no_other_package_imports_testing() -> None:
    importers = GRAPH.find_modules_that_directly_import("dispatch.testing") | {
        importer
        for module in GRAPH.find_descendants("dispatch.testing")
        for importer in GRAPH.find_modules_that_directly_import(module)
    }
    assert [module for module in importers if not module.startswith("dispatch.testing")] == []


def test_testing_imports_no_test_runner() -> None:
    runners = {"pytest", "_pytest", "hypothesis", "pulsar", "_pulsar"}
    script = f"import dispatch.testing, sys; print(*{runners!r} & set(sys.modules))"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert ended.stdout.split() == []


def test_all_public_names_exist() -> None:
    from dispatch import testing

    assert sorted(testing.__all__) == testing.__all__
    for name in testing.__all__:
        assert getattr(testing, name).__doc__, f"{name} says what it is"
