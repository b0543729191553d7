"""Messages as no peer should send them: what users get as well."""

from __future__ import annotations

from dispatch.testing.malformed import RUBBISH, OddMessage, rubbish, with_other_id

__all__ = ["RUBBISH", "OddMessage", "rubbish", "with_other_id"]
