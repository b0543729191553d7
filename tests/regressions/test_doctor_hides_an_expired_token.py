"""A broker says of an expired token only "Failed to authenticate", and so did ``dispatch doctor``, although the runbook said
that it shows there. The token itself says when it expires.
"""

from __future__ import annotations

import base64
import json
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from dispatch.cli.doctor import check_token_expiry
from tests.unit.cli.conftest import Run, as_if_alone, run

__all__ = ["as_if_alone", "run"]
HOUR, DAY = 3_600.0, 86_400.0
NOW = 1_800_000_000.0


def jwt(**claims: object) -> str:
    parts = [{"alg": "HS256", "typ": "JWT"}, claims]
    return (
        ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts) + ".c2ln"
    )


@pytest.fixture
def deaf() -> Iterator[str]:
    """The URL of a server that hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang_up() -> None:
            while True:
                try:
                    server.accept()[0].close()
                except OSError:
                    return

        thread = threading.Thread(target=hang_up)
        thread.start()
        yield f"pulsar://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_the_doctor_says_that_the_token_has_expired(run: Run, deaf: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPATCH_TOKEN", jwt(sub="agents", exp=time.time() - 2.5 * HOUR))
    end = run("doctor", "--broker", deaf, "--admin", "http://127.0.0.1:1", "--json")
    (found,) = [check for check in end.json["checks"] if check["name"] == "token"]
    assert found["status"] == "failed"
    assert found["detail"].startswith("the token of 'agents' has EXPIRED, 2 hours ago (2")
    assert "DISPATCH_TOKEN" in found["fix"]


@pytest.mark.parametrize(
    ("token", "status", "detail"),
    [
        (
            jwt(sub="a", exp=NOW - 30),
            "failed",
            "the token of 'a' has EXPIRED, less than a minute ago (2027-01-15 07:59:30 UTC)",
        ),
        (jwt(exp=NOW), "failed", "the token has EXPIRED, less than a minute ago (2027-01-15 08:00:00 UTC)"),
        (
            jwt(sub="a", exp=NOW + 2 * DAY + 5),
            "warning",
            "the token of 'a' expires in 2 days (2027-01-17 08:00:05 UTC)",
        ),
        (jwt(sub="a", exp=NOW + 40 * DAY), "ok", "the token of 'a' expires in 40 days (2027-02-24 08:00:00 UTC)"),
        (jwt(sub="a"), "ok", "the token of 'a' does not expire"),
        (jwt(sub="a", exp="tomorrow"), "warning", "the token of 'a' has an invalid expiry ('exp': 'tomorrow')"),
        (jwt(sub="a", exp=1e300), "warning", "the token of 'a' has an invalid expiry ('exp': 1e+300)"),
        ("not-a-token", "skipped", "not a JWT: only the broker knows its expiry"),
        ("a.b.c", "skipped", "not a JWT: only the broker knows its expiry"),
        ("a.W10.c", "skipped", "not a JWT: only the broker knows its expiry"),
    ],
)
def test_what_a_token_says_of_its_expiry(token: str, status: str, detail: str) -> None:
    found = check_token_expiry(token, NOW)
    assert (found.status, found.detail) == (status, detail)
