"""A broker in the hand instead of pulsar-client."""

from __future__ import annotations

import pytest

from dispatch.transports.pulsar import supervisor
from tests.helpers.fake_pulsar import Failures, FakeBroker


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> FakeBroker:
    made = FakeBroker()
    monkeypatch.setattr(supervisor, "PulsarClient", made.connect)
    monkeypatch.setattr(supervisor, "shake_hands", made.shake_hands)
    return made


@pytest.fixture
def failures() -> Failures:
    return Failures()
