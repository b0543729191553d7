"""The marker ``process``: which tests get it automatically, and what happens to a test that lacks it."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys

import pytest

from tests.helpers import cli_processes, process_marker, python_processes
from tests.helpers.python_processes import Running


def run_directly() -> None:
    subprocess.run(["true"], check=True)


async def run_in_a_nested_function() -> None:
    async def nested() -> None:
        await asyncio.create_subprocess_exec("true")

    await nested()


def run_through_a_function() -> None:
    run_directly()


def run_through_a_module() -> None:
    python_processes.finish("-V")


def run_through_a_class() -> None:
    Running(("-V",), "Python")


def run_nothing() -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        cli_processes.environment()


STARTING = [run_directly, run_in_a_nested_function, run_through_a_function, run_through_a_module, run_through_a_class]


@pytest.mark.parametrize("function", STARTING)
def test_functions_that_start_a_process_are_recognized(function: object) -> None:
    assert process_marker._starts_process(function)


def test_a_module_that_starts_processes_has_functions_that_do_not() -> None:
    assert not process_marker._starts_process(run_nothing)


@pytest.mark.parametrize("event", sorted(process_marker.AUDIT_EVENTS))
def test_a_test_without_the_marker_cannot_start_a_process(event: str) -> None:
    with pytest.raises(pytest.fail.Exception, match="lacks the marker `process`"):
        sys.audit(event, "true", ["true"])
    assert len(process_marker._refused) == 1, "it fails the test even if the tested code handles the exception"
    process_marker._refused.clear()


@pytest.mark.process
def test_a_test_with_the_marker_can() -> None:
    run_directly()
