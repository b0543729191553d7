"""Calls in a model's output: parse them, execute them, and answer in the form in which the model called."""

from dispatch.calling.calls import (
    CallableTool,
    FunctionCallResult,
    FunctionCallStatus,
    call_function,
    current_context,
    format_answers,
    function_calling_prompt,
)
from dispatch.calling.json_repair import MAX_DEPTH
from dispatch.calling.native import MAX_CALLS, CallForm, ParsedCall
from dispatch.calling.parsing import MAX_TEXT_CHARS, Parser, parse

__all__ = [
    "MAX_CALLS",
    "MAX_DEPTH",
    "MAX_TEXT_CHARS",
    "CallForm",
    "CallableTool",
    "FunctionCallResult",
    "FunctionCallStatus",
    "ParsedCall",
    "Parser",
    "call_function",
    "current_context",
    "format_answers",
    "function_calling_prompt",
    "parse",
]
