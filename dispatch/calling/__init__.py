"""Calls in a model's output: parse them, execute them, and answer in the form in which the model called."""

from dispatch.calling.parsed_call import MAX_CALLS, MAX_DEPTH, MAX_TEXT_CHARS, CallForm, ParsedCall
from dispatch.calling.parser import Parser, parse

__all__ = ["MAX_CALLS", "MAX_DEPTH", "MAX_TEXT_CHARS", "CallForm", "ParsedCall", "Parser", "parse"]
