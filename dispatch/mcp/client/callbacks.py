"""Answers of the application to requests of MCP servers."""

from __future__ import annotations

from typing import Any

import msgspec
from mcp.client.session import ElicitationFnT, ListRootsFnT, SamplingFnT


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
            "elicitation_callback": self.elicitation,
            "sampling_callback": self.sampling,
            "list_roots_callback": self.roots,
        }
