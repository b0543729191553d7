"""The part of a system prompt that shows tools to a model without native function calls."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

from dispatch.calling.callable_tool import CallableTool, NamedFunction, list_tools
from dispatch.calling.parsed_call import MAX_CALLS

_RULES: Final = f"""\
To call tools, write one block for each call, at most {MAX_CALLS} in one answer:

<function_call>
{{"name": "TOOL", "call_objective": "why you call it", "args": {{"ARGUMENT": "value"}}}}
</function_call>

- The content of a block is one valid JSON object: double quotes, no comments, no trailing commas.
- "args" is an object with the arguments, {{}} without any.
- Write a long text with many lines, such as code, without escapes between two marks and without quotes around them:
  "args": {{"code": __PAYLOAD_START__
print("hello")
__PAYLOAD_END__}}
- The results arrive in the next message, in blocks <function_call_result>. Never write such a block yourself.
- Without a block, your answer is final.
"""


def function_calling_prompt(tools: Iterable[CallableTool | NamedFunction]) -> str:
    """Return the rules of writing calls, and for each tool a line of JSON: name, description, schema of the arguments.

    With tools of a dispatcher, which cuts long results, ``read_result`` is among them.
    """
    lines = [
        json.dumps(
            {"name": tool.name, "description": tool.description, "parameters": tool.parameters}, ensure_ascii=False
        )
        for tool in list_tools(tools)
    ]
    if not lines:
        return "No tools are available. Answer without calls.\n"
    return f"Tools, one per line:\n\n{chr(10).join(lines)}\n\n{_RULES}"
