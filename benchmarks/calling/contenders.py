"""Ways to read calls: dispatch, a regular expression with ``json.loads`` or json-repair, and Chat2Graph's parser."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable
from typing import Any

from benchmarks.calling import chat2graph_parser
from dispatch.calling import parse

Calls = list[tuple[str, dict[str, Any]]]
Reader = Callable[[str], Calls]
_TAG = re.compile(r"<(function_call|tool_call)>\s*(.*?)\s*</\1>", re.DOTALL)
_BLOCK = re.compile(r"```json\s*(.*?)\s*```", re.DOTALL)


def read_with_dispatch(text: str) -> Calls:
    """The calls that :func:`dispatch.calling.call_function` would execute for a tool that changes something."""
    return [(call.name, call.args) for call in parse(text) if call.error is None and not call.truncated]


def read_with_regex(text: str, load: Callable[[str], Any] = json.loads) -> Calls:
    """Tags and ``json`` blocks by regular expression."""
    found: Calls = []
    for body in [match[2] for match in _TAG.finditer(text)] or [match[1] for match in _BLOCK.finditer(text)]:
        try:
            value = load(body)
        except ValueError:
            continue
        if isinstance(value, dict) and isinstance(value.get("name"), str):
            args = value.get("args", value.get("arguments"))
            if isinstance(args, dict):
                found.append((value["name"], args))
    return found


def contenders() -> dict[str, Reader]:
    """Every way that is installed, by name."""
    readers: dict[str, Reader] = {
        "dispatch": read_with_dispatch,
        "regex + json.loads": read_with_regex,
        "Chat2Graph": chat2graph_parser.read_calls,
    }
    try:
        repair = importlib.import_module("json_repair")
    except ImportError:
        return readers

    def read_with_repair(text: str) -> Calls:
        bodies = [match[2] for match in _TAG.finditer(text)] or [match[1] for match in _BLOCK.finditer(text)]
        # json-repair is used for what is cut off; so the text from the last tag on is a body.
        start = max(text.rfind("<function_call>"), text.rfind("<tool_call>"))
        if not bodies and start >= 0:
            bodies = [text[text.index(">", start) + 1 :]]
        found: Calls = []
        for body in bodies:
            value = repair.loads(body)
            if isinstance(value, dict) and isinstance(value.get("name"), str):
                args = value.get("args", value.get("arguments"))
                if isinstance(args, dict):
                    found.append((value["name"], args))
        return found

    readers["regex + json-repair"] = read_with_repair
    return readers
