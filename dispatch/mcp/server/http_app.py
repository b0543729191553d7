"""The ASGI application of an MCP server: streamable HTTP, protected against DNS rebinding, with bearer tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from mcp.server import Server
from mcp.server.auth.middleware.auth_context import AuthContextMiddleware
from mcp.server.auth.middleware.bearer_auth import BearerAuthBackend
from mcp.server.auth.provider import AccessToken
from mcp.server.transport_security import TransportSecurityMiddleware, TransportSecuritySettings
from starlette.applications import Starlette
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dispatch.mcp.server.messages import UnreadableMessageError, read_message

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


class UnreadableRequests:
    """ASGI application that answers requests which are no messages; the SDK answers them without their ids, and takes a
    request whose id is no integer for a notification.

    Args:
        app: receives all others.
        security: settings by which a request is refused before it is read.
    """

    def __init__(self, app: ASGIApp, security: TransportSecuritySettings) -> None:
        self._app = app
        self._security = TransportSecurityMiddleware(security)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        body = await receive()
        try:
            if body["type"] == "http.request" and not body.get("more_body", False):
                read_message(body.get("body", b""))
        except UnreadableMessageError as error:
            refusal = await self._security.validate_request(Request(scope), is_post=True)
            answer = Response(error.answer, 400, media_type="application/json")
            await (refusal or answer)(scope, receive, send)
            return
        unread = [body]

        async def replay() -> Message:
            return unread.pop() if unread else await receive()

        await self._app(scope, replay, send)


def make_app(server: Server[Any], path: str, hosts: Collection[str], tokens: Mapping[str, str] | None) -> Starlette:
    """Return the application; see :meth:`dispatch.mcp.server.McpServer.app`."""
    verifier = None if tokens is None else BearerTokens(tokens)
    security = protect_against_rebinding(hosts)
    app = server.streamable_http_app(streamable_http_path=path, transport_security=security, token_verifier=verifier)
    limited = server.session_manager.asgi_app  # reads the whole body, which is limited
    limited.app = UnreadableRequests(limited.app, security)
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
