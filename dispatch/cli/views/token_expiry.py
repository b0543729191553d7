"""Check of a token's expiry by the JWT claim ``exp``, without verification of the signature."""

from __future__ import annotations

import base64
import binascii
import json
import math
from datetime import UTC, datetime
from typing import Any

from dispatch.cli.views.check_result import CheckResult

SOON_S = 7 * 86_400.0
"""Remaining validity in seconds below which the check warns."""
_FIX = "export DISPATCH_TOKEN=… with a new token (or --token-file FILE), and restart processes that use the old one"


def parse_claims(token: str) -> dict[str, Any] | None:
    """Decode the claims of a JWT without verification; None: not a JWT."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    body = parts[1]
    try:
        claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    except (binascii.Error, ValueError):  # ValueError: not UTF-8 or not JSON
        return None
    return claims if isinstance(claims, dict) else None


def check_token_expiry(token: str, now: float) -> CheckResult:
    """Check the expiry of a token.

    Args:
        now: Unix time in seconds.
    """
    claims = parse_claims(token)
    if claims is None:
        return CheckResult("token", "skipped", "not a JWT: only the broker knows its expiry")
    subject = claims.get("sub")
    whose = f"the token of '{subject:.100}'" if isinstance(subject, str) else "the token"
    expiry = claims.get("exp")
    if expiry is None:
        return CheckResult("token", "ok", f"{whose} does not expire")
    try:
        at = datetime.fromtimestamp(float(expiry), UTC)
    except (TypeError, ValueError, OverflowError, OSError):
        return CheckResult("token", "warning", f"{whose} has an invalid expiry ('exp': {expiry!r:.100})", _FIX)
    when = f"{at:%Y-%m-%d %H:%M:%S} UTC"
    remaining = float(expiry) - now
    if remaining <= 0:
        return CheckResult("token", "failed", f"{whose} has EXPIRED, {_format_span(-remaining)} ago ({when})", _FIX)
    detail = f"{whose} expires in {_format_span(remaining)} ({when})"
    return CheckResult("token", "warning", detail, _FIX) if remaining < SOON_S else CheckResult("token", "ok", detail)


def _format_span(seconds: float) -> str:
    for size, unit in ((86_400, "day"), (3_600, "hour"), (60, "minute")):
        if seconds >= size:
            count = math.floor(seconds / size)
            return f"{count:,} {unit}{'s' if count > 1 else ''}"
    return "less than a minute"
