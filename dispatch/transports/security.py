"""Authentication at a broker, and verification of the broker."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from dispatch._internal.arguments import explain_keywords


@dataclass(frozen=True, slots=True)
class Security:
    """Token authentication and TLS of a connection.

    Attributes:
        token: a JSON Web Token, or a function that returns a fresh one each time the broker asks. Never shown.
        trust_certs: PEM file with the authorities to trust (``pulsar+ssl://``); None: the public ones.
        certificate: PEM file with the client's certificate, for mutual TLS; ``key`` belongs to it.
        key: PEM file with the client's private key.
        validate_hostname: the broker's certificate must name the host in the service URL.
    """

    token: str | Callable[[], str] | None = field(default=None, repr=False)
    trust_certs: str | Path | None = None
    certificate: str | Path | None = None
    key: str | Path | None = None
    validate_hostname: bool = True

    @classmethod
    def from_environment(cls) -> Security:
        """From ``DISPATCH_TOKEN`` (or ``DISPATCH_TOKEN_FILE``, read again whenever the broker asks) and
        ``DISPATCH_TRUST_CERTS``."""
        token: str | Callable[[], str] | None = os.environ.get("DISPATCH_TOKEN") or None
        token_file = os.environ.get("DISPATCH_TOKEN_FILE")
        if token is None and token_file:
            path = Path(token_file)
            token = lambda: path.read_text().strip()  # noqa: E731 - a def could not be assigned conditionally
        return cls(token=token, trust_certs=os.environ.get("DISPATCH_TRUST_CERTS") or None)


Security.__init__ = explain_keywords(Security.__init__)  # type: ignore[method-assign]
