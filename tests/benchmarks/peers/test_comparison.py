"""README's figures are those of the recorded results."""

from __future__ import annotations

from benchmarks.harness.processes import ROOT
from benchmarks.harness.programs import replace_figures
from benchmarks.peers.comparison import render


def test_readme_has_the_recorded_figures() -> None:
    readme = (ROOT / "README.md").read_text()
    assert replace_figures(readme, render()) == readme, "write them with: python -m benchmarks.peers.comparison"
