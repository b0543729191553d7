"""The benchmark of services that announce themselves."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from benchmarks.announcements.__main__ import main
from dispatch.devtools.localbroker import Endpoint

pytestmark = pytest.mark.pulsar


async def test_the_report_has_every_figure(
    pulsar_endpoint: Endpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "figures.json"
    sizes = ["--starts", "3", "--services", "20", "--instances", "2", "--seconds", "1"]
    arguments = [*sizes, "--broker", pulsar_endpoint.service_url, "--json", str(file)]
    assert await asyncio.to_thread(main, arguments) == 0
    figures = json.loads(file.read_text("utf-8"))
    assert len(figures["starts_s"]) == 3
    assert figures["load"]["instances"] > 0
    assert "≤ 5 %" in capsys.readouterr().out
