"""A broker in the hand instead of pulsar-client."""

from __future__ import annotations

import pytest

from dispatch.transports.pulsar import supervisor as staying
from tests.helpers.fake_pulsar import FakeBroker


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> FakeBroker:
    made = FakeBroker()
    monkeypatch.setattr(staying, "PulsarClient", made.connect)
    monkeypatch.setattr(staying, "shake_hands", made.shake_hands)
    return made
