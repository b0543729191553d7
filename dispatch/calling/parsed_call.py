"""A call that a model wrote, as it was read, and the limits of reading."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

import msgspec

MAX_CALLS: Final = 16
"""Calls of one text, those with errors included. A text with more is a loop of the model; the first ones may be useful."""
MAX_TEXT_CHARS: Final = 1 << 20
"""Characters of a text that are read: 1 MiB of ASCII. No model of today writes as much in one turn."""
MAX_DEPTH: Final = 64
"""Objects and lists inside each other, in one call. Tools rarely go beyond 10; CPython's JSON decoder fails near 1,000."""
MAX_EXCERPT_CHARS: Final = 200
"""Characters of the text that an error repeats to the model."""


class CallForm(StrEnum):
    """The syntax in which a call was written. It decides the form of the answer."""

    FUNCTION_CALL = "function-call"
    """``<function_call>{"name", "call_objective", "args"}</function_call>`` (Chat2Graph)."""
    TOOL_CALL = "tool-call"
    """``<tool_call>{"name", "arguments"}</tool_call>`` (Hermes, Qwen)."""
    FENCE = "fence"
    """A ``json`` code block with the three keys of Chat2Graph, or a ``tool_call`` code block."""
    REACT = "react"
    """Lines ``Thought:``, ``Action:`` and ``Args:`` (TrustGraph)."""
    OPENAI_CHAT = "openai-chat"
    """``tool_calls`` of an assistant message of OpenAI's Chat Completions."""
    OPENAI_RESPONSES = "openai-responses"
    """``function_call`` items in the output of OpenAI's Responses."""
    ANTHROPIC = "anthropic"
    """``tool_use`` blocks of Anthropic's Messages."""
    GEMINI = "gemini"
    """``functionCall`` parts of Gemini's contents."""


class ParsedCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call in a model's output, or one place that should be a call and is none.

    Attributes:
        name: name of the tool; ``""`` where it could not be read.
        args: the arguments, decoded from JSON.
        call_objective: the model's reason for the call; ``""`` in forms without one.
        form: the syntax of the call.
        call_id: the id that the model's API gave to the call; ``""`` in texts.
        position: index of the first character of the call in the text, from 0; 0 for native forms.
        line, column: the same place, from 1.
        repaired: the JSON was not valid and was repaired: trailing commas, comments, single quotes, raw newlines, missing or
            superfluous end brackets, Python's ``True``, ``False`` and ``None``.
        truncated: the text ended inside the call; ``args`` has what was there, the last value possibly in part.
        error: why the call cannot be executed, for the model; None for a readable call.
    """

    name: str
    form: CallForm
    args: dict[str, Any] = {}
    call_objective: str = ""
    call_id: str = ""
    position: int = 0
    line: int = 1
    column: int = 1
    repaired: bool = False
    truncated: bool = False
    error: str | None = None
