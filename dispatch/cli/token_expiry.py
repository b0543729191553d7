"""When a token expires, read from the token itself: a JWT's claim ``exp``, without a check of its signature."""

from __future__ import annotations

import base64
import binascii
import json
import math
from datetime import UTC, datetime
from typing import Any

from dispatch.cli.views.doctor_checks import Finding

SOON_S = 7 * 86_400.0
"""Less than this until it expires is a warning."""
_FIX = "export DISPATCH_TOKEN=… with a new one (or --token-file FILE), and start again what connects with this one"


def claims_of(token: str) -> dict[str, Any] | None:
    """The claims of a JWT, as they are said; None: it is none."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    body = parts[1]
    try:
        claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    except (binascii.Error, ValueError):  # the latter: no UTF-8, no JSON
        return None
    return claims if isinstance(claims, dict) else None


def token_expiry(token: str, now: float) -> Finding:
    """What a token says of its own expiry.

    Args:
        now: seconds since the epoch, by this machine's clock.
    """
    claims = claims_of(token)
    if claims is None:
        return Finding("token", "skipped", "it is no JWT: only the broker knows whether it has expired")
    subject = claims.get("sub")
    whose = f"the token of '{subject:.100}'" if isinstance(subject, str) else "the token"
    expiry = claims.get("exp")
    if expiry is None:
        return Finding("token", "ok", f"{whose} does not expire")
    try:
        at = datetime.fromtimestamp(float(expiry), UTC)
    except (TypeError, ValueError, OverflowError, OSError):
        return Finding("token", "warning", f"{whose} has an expiry that is no time ('exp': {expiry!r:.100})", _FIX)
    when = f"{at:%Y-%m-%d %H:%M:%S} UTC"
    left = float(expiry) - now
    if left <= 0:
        return Finding("token", "failed", f"{whose} has EXPIRED, {_span(-left)} ago ({when})", _FIX)
    detail = f"{whose} expires in {_span(left)} ({when})"
    return Finding("token", "warning", detail, _FIX) if left < SOON_S else Finding("token", "ok", detail)


def _span(seconds: float) -> str:
    for size, unit in ((86_400, "day"), (3_600, "hour"), (60, "minute")):
        if seconds >= size:
            count = math.floor(seconds / size)
            return f"{count:,} {unit}{'s' if count > 1 else ''}"
    return "less than a minute"
