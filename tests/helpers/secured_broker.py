"""A local Pulsar broker with tokens, permissions and TLS."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from dispatch.devtools.localbroker import (
    LOOPBACK,
    LocalBroker,
    LocalBrokerError,
    LocalBrokerUnavailableError,
    run,
)

#: Subject of the superuser's token.
SUPER_USER = "admin"

_TOKEN_PLUGIN = "org.apache.pulsar.client.impl.auth.AuthenticationToken"
_TOKEN_PROVIDER = "org.apache.pulsar.broker.authentication.AuthenticationProviderToken"
_DAYS = "3650"  # the key never leaves the folder; an expiry would only break stored brokers
_SERVER_EXTENSIONS = """\
basicConstraints=CA:FALSE
keyUsage=digitalSignature
extendedKeyUsage=serverAuth
subjectAltName=IP:127.0.0.1,DNS:localhost
"""
_REQUEST = """\
[req]
distinguished_name=name
prompt=no
x509_extensions=authority
[name]
CN=dispatch local broker
[authority]
basicConstraints=critical,CA:TRUE
keyUsage=critical,keyCertSign,cRLSign
subjectKeyIdentifier=hash
"""


class Security:
    """Secret key, certificate authority and server certificate of one local broker, in one folder.

    Attributes:
        ca_file: CA certificate for TLS clients, in PEM.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca_file = folder / "ca.pem"
        self._secret_file = folder / "token.key"
        self._certificate = folder / "broker.pem"
        self._key = folder / "broker-key.pem"

    @classmethod
    def create(cls, folder: Path) -> Security:
        """Create keys and certificates with the `openssl` command, or reuse those in `folder`.

        Raises:
            LocalBrokerUnavailableError: the `openssl` command is not installed.
            LocalBrokerError: the command failed.
        """
        security = cls(folder)
        if folder.exists():
            return security
        openssl = shutil.which("openssl")
        if openssl is None:
            raise LocalBrokerUnavailableError(
                ["the openssl command is not installed"],
                "Install it (apt-get install openssl), or start the broker without security.",
            )
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as temporary:
            work = Path(temporary) / "new"
            work.mkdir(mode=0o700)
            _write_private(work / "token.key", secrets.token_bytes(32))
            _make_certificates(work, openssl)
            work.rename(folder)  # atomic
        return security

    def token(self, subject: str) -> str:
        """Create a token (JWT, HS256, without expiry) for `subject`."""
        header = _base64url(json.dumps({"alg": "HS256", "typ": "JWT"}, separators=(",", ":")).encode())
        claims = _base64url(json.dumps({"sub": subject}, separators=(",", ":")).encode())
        signed = f"{header}.{claims}"
        signature = hmac.new(self._secret_file.read_bytes(), signed.encode(), hashlib.sha256).digest()
        return f"{signed}.{_base64url(signature)}"

    def settings(self) -> Mapping[str, str]:
        """Return the broker's settings for tokens and TLS."""
        token_file = self.folder / "super-user.token"
        if not token_file.exists():
            _write_private(token_file, self.token(SUPER_USER).encode())
        return {
            "authenticationEnabled": "true",
            "authenticationProviders": _TOKEN_PROVIDER,
            "authorizationEnabled": "true",
            "superUserRoles": SUPER_USER,
            "tokenSecretKey": self._secret_file.as_uri(),
            # The broker connects to itself as a client.
            "brokerClientAuthenticationPlugin": _TOKEN_PLUGIN,
            "brokerClientAuthenticationParameters": token_file.as_uri(),
            "tlsCertificateFilePath": str(self._certificate),
            "tlsKeyFilePath": str(self._key),
            "tlsTrustCertsFilePath": str(self.ca_file),
        }


def _make_certificates(work: Path, openssl: str) -> None:
    (work / "request.conf").write_text(_REQUEST)
    (work / "extensions.conf").write_text(_SERVER_EXTENSIONS)

    def call(*arguments: str) -> None:
        result = run([openssl, *arguments])
        if result.returncode != 0:
            raise LocalBrokerError(f"openssl {arguments[0]} failed: {(result.stderr or result.stdout).strip()[-500:]}")

    config = str(work / "request.conf")
    for name in ("ca-key", "broker-key"):
        call("genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", str(work / f"{name}.pem"))
        (work / f"{name}.pem").chmod(0o600)
    ca_key, ca = str(work / "ca-key.pem"), str(work / "ca.pem")
    call("req", "-new", "-x509", "-config", config, "-key", ca_key, "-sha256", "-days", _DAYS, "-out", ca)
    request = str(work / "broker.csr")
    key = str(work / "broker-key.pem")
    call("req", "-new", "-config", config, "-key", key, "-subj", "/CN=127.0.0.1", "-out", request)
    call(
        *("x509", "-req", "-in", request, "-CA", ca, "-CAkey", ca_key, "-set_serial", str(secrets.randbits(63))),
        *("-sha256", "-days", _DAYS, "-extfile", str(work / "extensions.conf"), "-out", str(work / "broker.pem")),
    )


def _write_private(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def _base64url(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


class SecuredBroker(LocalBroker):
    """A broker that requires tokens, authorizes by them, and serves TLS as well; :meth:`start_secured` starts it.

    Attributes:
        security: its keys and certificates.
    """

    security: Security

    @classmethod
    def start_secured(cls, **options: Any) -> Self:
        """Start a broker; ``options``: of :meth:`LocalBroker.start`."""
        security = Security.create(Path(tempfile.mkdtemp(prefix="tool-dispatch-security-")) / "security")
        broker = cls.start(settings=security.settings(), super_user_token=security.token(SUPER_USER), **options)
        broker.security = security
        return broker

    @property
    def service_url_tls(self) -> str:
        """URL for clients with TLS."""
        return f"pulsar+ssl://{LOOPBACK}:{self._configuration.ports.tls}"

    @property
    def ca_file(self) -> Path:
        """The CA certificate for TLS clients."""
        return self.security.ca_file

    def token(self, subject: str = SUPER_USER) -> str:
        """Create a token for ``subject``."""
        return self.security.token(subject)

    def stop(self) -> None:
        """Stop the broker and delete its data, keys and certificates."""
        super().stop()
        shutil.rmtree(self.security.folder.parent, ignore_errors=True)
