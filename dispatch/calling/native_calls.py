"""Calls in the native forms of model APIs: OpenAI's Chat Completions and Responses, Anthropic's Messages, Gemini."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from dispatch.calling.call_objects import finish_call
from dispatch.calling.json_reading.json_reader import is_deeper
from dispatch.calling.parsed_call import MAX_CALLS, MAX_DEPTH, CallForm, ParsedCall

_LENGTH_REASONS: Final = frozenset({"length", "max_tokens", "MAX_TOKENS", "incomplete", "max_output_tokens"})
_NATIVE_KEYS: Final = ('"tool_calls"', '"function_call"', '"tool_use"', '"functionCall"')
_WRAPPERS: Final = ("choices", "message", "output", "content", "candidates", "parts")
"""Keys under which responses hold their messages and parts."""
_KNOWN_KEYS: Final = frozenset({"type", "functionCall", "function_call", "tool_calls", *_WRAPPERS})


def read_native_text(text: str) -> list[ParsedCall] | None:
    """Return the calls of a text that is JSON in a native form as a whole; None for any other text."""
    stripped = text.strip()
    if stripped[:1] not in ("{", "[") or stripped[-1:] not in ("}", "]"):
        return None
    if not any(key in stripped for key in _NATIVE_KEYS):
        return None
    try:
        value = json.loads(stripped)
    except (ValueError, RecursionError):
        return None
    return read_native(value) or None


def read_native(value: Any) -> list[ParsedCall]:
    """Return the calls of a decoded message, response, or list of messages, parts or output items."""
    calls: list[ParsedCall] = []
    for call in _find(value, is_cut=False, depth=0):
        if len(calls) == MAX_CALLS:
            message = f"The call of {call.name!r} was not executed: a message may have at most {MAX_CALLS} calls. "
            error = f"{message}Make the calls that are still needed after the results of the others."
            calls.append(ParsedCall(name=call.name, form=call.form, call_id=call.call_id, error=error))
            # Each call of a native form needs an answer under its id, so the others are reported one by one.
        elif len(calls) > MAX_CALLS:
            calls.append(ParsedCall(name=call.name, form=call.form, call_id=call.call_id, error=calls[MAX_CALLS].error))
        else:
            calls.append(call)
    return calls


def _find(value: Any, *, is_cut: bool, depth: int) -> Iterator[ParsedCall]:
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for each in value:
            if isinstance(each, dict) and _KNOWN_KEYS.isdisjoint(each):
                continue  # perf: a list may have tens of thousands of objects without calls
            if depth < len(_WRAPPERS) * 2:
                yield from _find(each, is_cut=is_cut, depth=depth + 1)
        return
    if not isinstance(value, Mapping):
        return
    reasons = (value.get("finish_reason"), value.get("finishReason"), value.get("stop_reason"), value.get("status"))
    is_cut = is_cut or any(isinstance(reason, str) and reason in _LENGTH_REASONS for reason in reasons)
    if value.get("type") == "function_call" and "arguments" in value:
        yield _make(value, CallForm.OPENAI_RESPONSES, value.get("call_id"), value.get("arguments"), is_cut)
    elif value.get("type") == "tool_use":
        yield _make(value, CallForm.ANTHROPIC, value.get("id"), value.get("input"), is_cut)
    elif isinstance(part := value.get("functionCall", value.get("function_call")), Mapping):
        is_gemini = "functionCall" in value or not isinstance(part.get("arguments"), str)
        form = CallForm.GEMINI if is_gemini else CallForm.OPENAI_CHAT
        yield _make(part, form, part.get("id"), part.get("args" if is_gemini else "arguments"), is_cut)
    elif isinstance(value.get("tool_calls"), Sequence):
        for each in value["tool_calls"]:
            function = each.get("function") if isinstance(each, Mapping) else None
            if isinstance(function, Mapping):
                arguments = function.get("arguments")
                yield _make(function, CallForm.OPENAI_CHAT, each.get("id"), arguments, is_cut)
    elif depth < len(_WRAPPERS) * 2:
        for key in _WRAPPERS:
            if isinstance(value.get(key), Mapping | list | tuple):
                yield from _find(value[key], is_cut=is_cut, depth=depth + 1)


def _make(value: Mapping[str, Any], form: CallForm, call_id: Any, arguments: Any, is_cut: bool) -> ParsedCall:
    name = value.get("name")
    known_id = call_id if isinstance(call_id, str) else ""
    if not isinstance(name, str) or not name:
        error = "The call was not executed: it has no name. Write the whole call again with the name of a tool."
        return ParsedCall(name="", form=form, call_id=known_id, error=error)
    if is_deeper(arguments, MAX_DEPTH):
        error = f"{name!r} was not executed: its arguments are nested deeper than {MAX_DEPTH}. Write flatter arguments."
        return ParsedCall(name=name, form=form, call_id=known_id, error=error)
    # An API that stopped at its limit of tokens may have closed the brackets by itself.
    is_object = not isinstance(arguments, str)
    return finish_call(ParsedCall(name=name, form=form, call_id=known_id, truncated=is_cut and is_object), arguments)
