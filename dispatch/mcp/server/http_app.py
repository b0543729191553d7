"""The ASGI application of an MCP server: streamable HTTP, protected against DNS rebinding, with bearer tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from mcp.server import Server
from mcp.server.auth.middleware.auth_context import AuthContextMiddleware
from mcp.server.auth.middleware.bearer_auth import BearerAuthBackend
from mcp.server.auth.provider import AccessToken
from mcp.server.transport_security import TransportSecuritySettings
from starlette.applications import Starlette
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

LOOPBACK_HOSTS: Final = ("127.0.0.1", "localhost", "[::1]")


class BearerTokens:
    """Verifies bearer tokens for the SDK.

    Args:
        users: by their tokens.
    """

    def __init__(self, users: Mapping[str, str]) -> None:
        # By their hashes: the time of a lookup reveals nothing about a token.
        self._users = {_hash(token): user for token, user in users.items()}

    async def verify_token(self, token: str) -> AccessToken | None:
        """Return the access that ``token`` gives; None: it is unknown."""
        user = self._users.get(_hash(token))
        return None if user is None else AccessToken(token=token, client_id=user, scopes=[], subject=user)


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()


def make_app(server: Server[Any], path: str, hosts: Collection[str], tokens: Mapping[str, str] | None) -> Starlette:
    """Return the application; see :meth:`dispatch.mcp.server.McpServer.app`."""
    verifier = None if tokens is None else BearerTokens(tokens)
    app = server.streamable_http_app(
        streamable_http_path=path, transport_security=protect_against_rebinding(hosts), token_verifier=verifier
    )
    if verifier is not None:
        # The SDK adds them only with the settings of an OAuth server; the last one is the outermost.
        app.add_middleware(AuthContextMiddleware)
        app.add_middleware(AuthenticationMiddleware, backend=BearerAuthBackend(verifier))
    app.add_middleware(TrimmedHeaders)
    return app


def protect_against_rebinding(hosts: Collection[str]) -> TransportSecuritySettings:
    """Return settings that accept requests to the loopback interface and to ``hosts`` only, with any port."""
    accepted = list(dict.fromkeys([*LOOPBACK_HOSTS, *hosts]))
    return TransportSecuritySettings(
        enable_dns_rebinding_protection=True,
        allowed_hosts=[form for host in accepted for form in _with_port(host)],
        allowed_origins=[
            f"{scheme}://{form}" for host in accepted for scheme in ("http", "https") for form in _with_port(host)
        ],
    )


def _with_port(host: str) -> Iterator[str]:
    yield host
    yield f"{host}:*"


class TrimmedHeaders:
    """ASGI application that removes the blanks around the values of headers. They are no part of a value (RFC 9110, section
    5.5), but httptools keeps those behind it, and the SDK compares ``mcp-name`` and others with the message.

    Args:
        app: receives all requests.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = {**scope, "headers": [(name, value.strip(b" \t")) for name, value in scope["headers"]]}
        await self._app(scope, receive, send)
