"""The guide on testing agents: its code runs, and its table lists every fault."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dispatch.testing.faults import FAULT_KINDS

GUIDE = (Path(__file__).parents[3] / "docs" / "how-to" / "test-an-agent.md").read_text(encoding="utf-8")
SOURCE = "\n".join(re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL))

pytest_plugins = ["pytester"]


def test_the_guides_code_is_a_test_that_passes(pytester: pytest.Pytester) -> None:
    assert SOURCE.count("async def test_") == 2
    pytester.makepyfile(SOURCE)
    plugins = ("-p", "no:dispatch", "-p", "pytest_tool_dispatch", "-p", "no:cacheprovider", "-W", "error")
    pytester.runpytest_subprocess(*plugins).assert_outcomes(passed=2)


@pytest.mark.parametrize("name", [*FAULT_KINDS, "latency"])
def test_the_guides_table_has_every_fault(name: str) -> None:
    table = [line.split("|")[1] for line in GUIDE.splitlines() if line.startswith("| `")]
    assert any(re.search(rf"`{name}[`=]", cell) for cell in table)
