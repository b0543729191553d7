"""Fixtures of the tests of sessions."""

from __future__ import annotations

import pytest

from tests.helpers.handwritten_peer import HandWritten
from tests.helpers.session_pair import Pair


@pytest.fixture
def peer() -> HandWritten:
    """A callee written by hand, in an open session with a caller."""
    return HandWritten()


@pytest.fixture
def pair() -> Pair:
    """A dispatcher and an instance with an open session."""
    pair = Pair()
    pair.exchange()
    return pair
