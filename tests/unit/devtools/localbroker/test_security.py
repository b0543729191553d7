from __future__ import annotations

import base64
import hashlib
import hmac
import json
import shutil
import socket
import ssl
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from dispatch.devtools.localbroker import LocalBrokerError, LocalBrokerUnavailableError, Security
from tests.unit.devtools.localbroker.fakes import FakeRunner

pytestmark = pytest.mark.process  # openssl


@pytest.fixture(scope="module")
def security(tmp_path_factory: pytest.TempPathFactory) -> Security:
    return Security.create(tmp_path_factory.mktemp("broker") / "security")


def decode(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


def test_a_token_is_a_jwt_signed_with_the_secret_key(security: Security) -> None:
    header, claims, signature = security.token("alice").split(".")

    assert json.loads(decode(header))["alg"] == "HS256"
    assert json.loads(decode(claims)) == {"sub": "alice"}
    secret = (security.folder / "token.key").read_bytes()
    assert len(secret) == 32
    assert decode(signature) == hmac.digest(secret, f"{header}.{claims}".encode(), hashlib.sha256)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_the_certificate_is_good_for_the_loopback_and_only_with_our_authority(security: Security, host: str) -> None:
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(security.folder / "broker.pem", security.folder / "broker-key.pem")

    def handshake(context: ssl.SSLContext, name: str) -> None:
        ours, theirs = socket.socketpair()

        def serve() -> None:
            with theirs, suppress(OSError):  # the client may refuse us
                server_context.wrap_socket(theirs, server_side=True).close()

        server = threading.Thread(target=serve)
        server.start()
        try:
            with ours:
                context.wrap_socket(ours, server_hostname=name).close()
        finally:
            server.join()

    trusting = ssl.create_default_context(cafile=str(security.ca_file))
    handshake(trusting, host)
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        handshake(trusting, "example.org")
    with pytest.raises(ssl.SSLCertVerificationError, match="issuer"):
        handshake(ssl.create_default_context(), host)


def test_secrets_are_for_their_owner_only(security: Security) -> None:
    security.settings(6651)

    assert security.folder.stat().st_mode & 0o077 == 0
    for name in ("token.key", "super-user.token", "broker-key.pem", "ca-key.pem"):
        assert (security.folder / name).stat().st_mode & 0o077 == 0, name


def test_the_broker_is_told_to_ask_and_how_to_ask_itself(security: Security) -> None:
    settings = security.settings(6651)

    assert settings["authenticationEnabled"] == settings["authorizationEnabled"] == "true"
    assert settings["brokerServicePortTls"] == "6651"
    own = Path(settings["brokerClientAuthenticationParameters"].removeprefix("file://"))
    assert own.read_text() == security.token(settings["superUserRoles"])


def test_what_is_there_is_kept(security: Security) -> None:
    again = Security.create(security.folder, which=lambda _name: pytest.fail("nothing is to be made"))

    assert again.token("alice") == security.token("alice")


def test_without_openssl_the_error_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(LocalBrokerUnavailableError, match="apt-get install openssl"):
        Security.create(tmp_path / "security", which=lambda _name: None)


def test_a_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    runner = FakeRunner(openssl_genpkey=(1, "", "no entropy"))

    with pytest.raises(LocalBrokerError, match="openssl genpkey failed: no entropy"):
        Security.create(tmp_path / "data" / "security", runner=runner, which=shutil.which)

    assert list((tmp_path / "data").iterdir()) == []
