"""The asyncio endpoint of the session protocol over a transport."""

from __future__ import annotations

from dispatch.messaging.endpoint.endpoint import Endpoint
from dispatch.messaging.endpoint.reply_permission import ReplyPermission

__all__ = ["Endpoint", "ReplyPermission"]
