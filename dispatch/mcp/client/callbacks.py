"""Answers of the application to requests of MCP servers."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from mcp import MCPError
from mcp.client.session import ElicitationFnT, ListRootsFnT, SamplingFnT
from mcp.types import INTERNAL_ERROR, ErrorData

from dispatch._internal.user_code import ErrorBoundary, type_name, unwrap
from dispatch.telemetry.logs import ExceptionLogger

_failures = ExceptionLogger(logging.getLogger("dispatch.mcp"))


class Callbacks(msgspec.Struct, frozen=True):
    """Callbacks of the SDK, by the kind of the request. None: such requests are rejected by name, and the server is told
    at the handshake that there is no answer to them.

    Attributes:
        elicitation: asks the user.
        sampling: asks a model.
        roots: lists the folders that a server may use.
    """

    elicitation: ElicitationFnT | None = None
    sampling: SamplingFnT | None = None
    roots: ListRootsFnT | None = None

    @property
    def has_any(self) -> bool:
        """Whether a request may be answered."""
        return self != Callbacks()

    def as_options(self) -> dict[str, Any]:
        """Return the arguments for :class:`mcp.Client`."""
        return {
            "elicitation_callback": _hold_errors(self.elicitation, "elicitation"),
            "sampling_callback": _hold_errors(self.sampling, "sampling"),
            "list_roots_callback": _hold_errors(self.roots, "roots"),
        }


def _hold_errors(callback: Callable[..., Awaitable[Any]] | None, kind: str) -> Callable[..., Awaitable[Any]] | None:
    """Return ``callback`` with errors as its answers: what it raises must not end the session, and its text, which may have
    user data, is not sent to the server. An MCPError is an answer of its own."""
    if callback is None:
        return None

    async def answer(*values: Any) -> Any:
        try:
            with ErrorBoundary():
                return await callback(*values)
        except MCPError:
            raise
        except Exception as error:
            _failures.log(f"the callback for {kind} failed", error)
            name = type_name(unwrap(error))
            return ErrorData(code=INTERNAL_ERROR, message=f"The client's callback for {kind} failed ({name}).")

    return answer
