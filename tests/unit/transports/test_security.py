"""Security: what the environment says, and that a token is never shown."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from dispatch.transports.base import Security

NAMES = ("DISPATCH_TOKEN", "DISPATCH_TOKEN_FILE", "DISPATCH_TRUST_CERTS")


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


def environment(monkeypatch: pytest.MonkeyPatch, **values: str) -> Security:
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    return Security.from_environment()


def test_an_empty_environment_means_no_token_and_the_public_authorities(monkeypatch: pytest.MonkeyPatch) -> None:
    assert environment(monkeypatch) == Security()
    assert environment(monkeypatch, DISPATCH_TOKEN="", DISPATCH_TOKEN_FILE="", DISPATCH_TRUST_CERTS="") == Security()
    assert Security().validate_hostname


def test_a_token_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    security = environment(monkeypatch, DISPATCH_TOKEN="abc.def", DISPATCH_TRUST_CERTS="/etc/ca.pem")
    assert (security.token, security.trust_certs) == ("abc.def", "/etc/ca.pem")


def test_a_token_file_is_read_again_whenever_the_broker_asks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "token"
    security = environment(monkeypatch, DISPATCH_TOKEN_FILE=str(file))
    assert callable(security.token)
    for written in ("first\n", "  second \n\n"):
        file.write_text(written)
        assert security.token() == written.strip()
    file.unlink()
    with pytest.raises(FileNotFoundError):
        security.token()


def test_the_token_itself_goes_before_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert environment(monkeypatch, DISPATCH_TOKEN="abc", DISPATCH_TOKEN_FILE=str(tmp_path)).token == "abc"


def test_a_token_is_never_shown() -> None:
    for token in ("s3cret", lambda: "s3cret"):
        security = Security(token=token, trust_certs="/etc/ca.pem")
        assert "s3cret" not in repr(security)
        assert "token" not in repr(security)
        assert "/etc/ca.pem" in str(security)


def test_it_cannot_be_changed_once_a_connection_has_it() -> None:
    with pytest.raises(FrozenInstanceError):
        Security(token="a").token = "b"  # type: ignore[misc]
