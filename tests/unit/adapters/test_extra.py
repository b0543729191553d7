"""Adapters without their framework, and as attributes of ``dispatch``."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import dispatch
from dispatch.adapters import FRAMEWORKS
from tests.adapters.conftest import LIBRARIES

ROOT = Path(dispatch.__file__).parents[1]


def test_a_missing_framework_is_an_error_that_names_the_extra() -> None:
    libraries = ("langchain_core", "pydantic_ai", "agents", "google.adk", "crewai", "agent_framework")
    script = (
        f"import sys\nfor name in {libraries!r}:\n    sys.modules[name] = None\n"
        f"import dispatch\nfor name in {FRAMEWORKS!r}:\n    try:\n        getattr(dispatch.adapters, name)\n"
        "    except ImportError as error:\n        print(error)"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    for framework, error in zip(FRAMEWORKS, ended.stdout.splitlines(), strict=True):
        assert f"pip install 'tool-dispatch[{framework.replace('_', '-')}]'" in error


def test_every_framework_has_an_extra_a_pinned_environment_and_a_test() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    assert tuple(LIBRARIES) == FRAMEWORKS
    for framework in FRAMEWORKS:
        assert framework.replace("_", "-") in extras
        assert not any(framework.replace("_", "-") in each for each in extras["all"])
        assert (ROOT / "tests" / "adapters" / f"test_{framework}.py").is_file()
        lines = (ROOT / "tests" / "adapters" / "requirements" / f"{framework}.txt").read_text("utf-8").splitlines()
        assert all("==" in line for line in lines if line and not line.startswith("#"))


def test_another_name_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="no attribute 'autogen'"):
        dispatch.adapters.autogen  # noqa: B018 - the access is what fails
