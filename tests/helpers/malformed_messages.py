"""Malformed messages for tests of what receives them."""

from __future__ import annotations

from dispatch.testing import MALFORMED_PAYLOADS, AlteredMessage, malformed_payload, replace_id

__all__ = ["MALFORMED_PAYLOADS", "AlteredMessage", "malformed_payload", "replace_id"]
