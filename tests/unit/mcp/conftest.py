"""Servers of these tests are processes, which start slowly beside many others."""

from __future__ import annotations

import pytest

from tests.helpers.mcp_servers.programs import START_S


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dispatcher starts with the tools of its servers, however busy the machine is."""
    monkeypatch.setattr("dispatch.catalog.registry.FIRST_DISCOVERY_S", START_S)
