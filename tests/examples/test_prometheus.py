"""examples/prometheus.yml is a configuration that Prometheus takes, with the rules that it names."""

from __future__ import annotations

import subprocess

import pytest

from tests.helpers.cli_processes import REPO
from tests.helpers.prometheus_binaries import find


@pytest.mark.prometheus
def test_prometheus_takes_it_with_all_rules() -> None:
    ended = subprocess.run(
        [find("promtool"), "check", "config", str(REPO / "examples" / "prometheus.yml")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    assert "SUCCESS: 2 rule files found" in ended.stdout
