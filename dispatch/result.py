"""The result of a call; and the error that an exception of a tool means."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

import msgspec

from dispatch._internal import is_kind, read_field, read_text, type_name, unwrap
from dispatch.errors import DispatchError, ErrorType, Outcome

_SUCCESS = Outcome.SUCCESS


class ResultContent(msgspec.Struct, frozen=True):
    """What a result has besides its text, as JSON values in the form of MCP.

    Attributes:
        blocks: all parts of the result in their order: texts, images, audio, links and embedded resources.
        structured: the result as a JSON value; None: there is none.
    """

    blocks: tuple[Mapping[str, Any], ...] = ()
    structured: Any = None


class CallResult(msgspec.Struct, frozen=True):
    """The result of one call.

    Attributes:
        tool: name of the tool.
        outcome: the one :class:`~dispatch.Outcome` of the call.
        text: the reply, or the concatenated chunks of a stream; ``""`` unless ``outcome`` is SUCCESS.
        error: what :meth:`Dispatcher.call` would raise; None for SUCCESS.
        duration: seconds from the call to its end.
        attempts: requests that were sent; 0 when none was.
        chunks: messages of the reply.
        request_id: the property ``id`` of the last attempt, ``""`` when nothing was sent.
        instance: id of the service instance that replied, None when it gives none.
        content: all parts of the result in their order, as content blocks of MCP (texts, images, audio, links); empty unless
            the tool is one of an MCP server. ``text`` has the parts that a model reads.
        structured_content: the result as a JSON value, from a tool of an MCP server; None: there is none.
    """

    tool: str
    outcome: Outcome
    text: str = ""
    error: DispatchError | None = None
    duration: float = 0.0
    attempts: int = 0
    chunks: int = 0
    request_id: str = ""
    instance: str | None = None
    content: tuple[Mapping[str, Any], ...] = ()
    structured_content: Any = None

    @property
    def ok(self) -> bool:
        """Whether the call succeeded."""
        return self.error is None

    def as_dict(self) -> dict[str, Any]:
        """Return the result as plain values, for ``--json``."""
        error = None if self.error is None else self.error.as_dict()
        content = [dict(block) for block in self.content]
        own = {"outcome": str(self.outcome), "error": error, "duration": round(self.duration, 6), "content": content}
        return {**msgspec.structs.asdict(self), **own}


def read_tool_error(raised: BaseException) -> tuple[str, str]:
    """Return type and message of the error that the caller of a tool gets, which has raised ``raised``: those of a
    :class:`DispatchError`, otherwise the name of the class and the text."""
    raised = unwrap(raised)
    if is_kind(raised, DispatchError):
        with contextlib.suppress(BaseException):  # a property of its class may raise
            return read_text(raised.type), read_text(raised.message)
    if is_kind(raised, asyncio.CancelledError):
        return ErrorType.CANCELLED, "The tool was cancelled while it ran, and may have been executed in part."
    name, text = type_name(raised), read_text(raised)
    if _has_text_of_key_error(raised) or (text and not any(map(str.isalpha, text))):  # KeyError('x'), SystemExit(3)
        text = f"{name}: {text}"
    return name, text


def _has_text_of_key_error(raised: BaseException) -> bool:
    """Return whether the text is nothing but the key."""
    return (
        is_kind(raised, KeyError)
        and getattr(type(raised), "__str__", None) is KeyError.__str__
        and bool(read_field(raised, "args"))
    )
