"""The fixtures in a fresh run of pytest, found as pytest finds them where dispatch is installed; and their guide."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from dispatch.testing import FAULT_KINDS

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"
GUIDE = (ROOT / "docs" / "how-to" / "test-an-agent.md").read_text(encoding="utf-8")
GUIDE_CODE = "\n".join(re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL))

pytest_plugins = ["pytester"]

SERVICE = """
import dispatch
from dispatch.testing import Faults, virtual_time

class Echo(dispatch.ToolService):
    async def invoke(self, config, arguments, user=""):
        return arguments["text"]

CATALOG = dispatch.Catalog.of(
    [{"id": "echo", "request-queue": "non-persistent://tg/request/echo",
      "response-queue": "non-persistent://tg/response/echo"}],
    [{"type": "tool-service", "name": "echo", "description": "Echoes.", "service": "echo"}],
)
"""


@pytest.fixture
def installed(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A place where dispatch is installed as pyproject.toml says, so far as pytest looks: its entry point."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    site = pytester.mkdir("site")
    info = site / "tool_dispatch-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tool-dispatch\nVersion: 1\n")
    points = "\n".join(f"{name} = {where}" for name, where in declared["entry-points"]["pytest11"].items())
    (info / "entry_points.txt").write_text(f"[pytest11]\n{points}\n")
    monkeypatch.setenv("PYTHONPATH", f"{site}:{ROOT}")
    monkeypatch.delenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", raising=False)
    return pytester


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    others = ("-p", "no:cacheprovider", "-p", "no:langsmith_plugin")  # as in pyproject.toml
    return pytester.runpytest_subprocess("-W", "error", *others, *arguments)


IMPORTS = """
import sys

MODULES = set(sys.modules)  # before the other files are collected

def test_nothing_is_imported_unless_a_fixture_is_used():
    assert "pytest_tool_dispatch" in MODULES
    assert not [name for name in MODULES if name.partition(".")[0] in ("dispatch", "msgspec", "tenacity")]
"""
FIXTURES = (
    SERVICE
    + """
@virtual_time
async def test_factory(make_dispatcher):
    async with make_dispatcher(CATALOG, services={"echo": Echo()}) as dispatcher:
        assert await dispatcher.call("echo", {"text": "here"}) == "here"

@virtual_time
async def test_broker(dispatch_broker):
    async with dispatch_broker.serve(Echo(), "echo"), dispatch.connect(dispatch_broker.url, CATALOG) as dispatcher:
        assert await dispatcher.call("echo", {"text": "here"}) == "here"

@virtual_time
async def test_faults(make_dispatcher, dispatch_broker, fault_injector):
    assert dispatch_broker.injector is fault_injector
    fault_injector.inject(Faults(tool_error=1))
    async with make_dispatcher(CATALOG, services={"echo": Echo()}) as dispatcher:
        result = await dispatcher.execute("echo", {"text": "here"})
    assert result.outcome == "tool_error"
    assert fault_injector.count["in tool_error"] == 1

def test_each_test_has_its_own(fault_injector):
    assert not fault_injector.faults
"""
)
HANGS = """
import asyncio
from dispatch.testing import virtual_time

@virtual_time
async def test_it():
    await asyncio.Event().wait()
"""


def test_fixtures_are_found_without_configuration_and_imported_where_they_are_used(installed: pytest.Pytester) -> None:
    """The first file uses none; one is the guide's, one the example's."""
    assert GUIDE_CODE.count("async def test_") == 2
    files = {
        "test_1_imports": IMPORTS,
        "test_2_fixtures": FIXTURES,
        "test_3_guide": GUIDE_CODE,
        "test_4_example": (EXAMPLES / "test_my_agent.py").read_text(encoding="utf-8"),
        "test_5_hangs": HANGS,
    }
    for name in ("joke_service.py", "tools"):
        (installed.path / name).symlink_to(EXAMPLES / name)
    installed.makepyfile(**files)
    result = run(installed)
    result.assert_outcomes(passed=1 + 4 + 2 + 6, failed=1)
    result.stdout.fnmatch_lines(
        ["*DeadlockError: no callback is ready and no timer is set*", "*await asyncio.Event().wait()*"]
    )


def test_fixtures_are_listed_with_their_docstrings(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # of others, whose warnings are errors here
    told = pytester.runpytest_inprocess("-p", "pytest_tool_dispatch", "--fixtures").stdout
    told.fnmatch_lines(
        ["fault_injector*", "*the faults of this test's dispatchers*", "dispatch_broker*", "make_dispatcher*"]
    )


def test_the_plugin_can_be_disabled(installed: pytest.Pytester) -> None:
    installed.makepyfile("def test_it(fault_injector): pass")
    result = run(installed, "-p", "no:dispatch")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*fixture 'fault_injector' not found*"])


@pytest.mark.parametrize("name", [*FAULT_KINDS, "latency"])
def test_the_guides_table_has_every_fault(name: str) -> None:
    table = [line.split("|")[1] for line in GUIDE.splitlines() if line.startswith("| `")]
    assert any(re.search(rf"`{name}[`=]", cell) for cell in table)
