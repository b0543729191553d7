"""Calls in a model's output: parse them, execute them, and answer in the form in which the model called."""

from dispatch.calling.answers import format_answers
from dispatch.calling.callable_tool import CallableTool
from dispatch.calling.execution import call_function, current_context
from dispatch.calling.function_call_result import FunctionCallResult, FunctionCallStatus
from dispatch.calling.parsed_call import MAX_CALLS, MAX_DEPTH, MAX_TEXT_CHARS, CallForm, ParsedCall
from dispatch.calling.parser import Parser, parse
from dispatch.calling.prompt import function_calling_prompt

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
