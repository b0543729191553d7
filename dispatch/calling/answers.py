"""Results in the form in which the model called, as messages for its next turn."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import groupby
from typing import Any

from dispatch._internal.utf8 import scalar_value
from dispatch.calling.function_call_result import FunctionCallResult, FunctionCallStatus
from dispatch.calling.parsed_call import CallForm


def format_answers(results: Iterable[FunctionCallResult]) -> list[dict[str, Any]]:
    """Return the messages that give ``results`` back to the model.

    Native forms get the messages or items of their API, each with the id of its call. Texts get one user message:
    ``<function_call_result>`` for Chat2Graph, ``<tool_response>`` for Hermes and Qwen, ``Observation:`` for TrustGraph.
    """
    messages: list[dict[str, Any]] = []
    for form, group in groupby(results, key=lambda result: result.form):
        messages += scalar_value(_format(form, list(group)))
    return messages


def _format(form: CallForm, results: list[FunctionCallResult]) -> list[dict[str, Any]]:
    match form:
        case CallForm.OPENAI_CHAT:
            return [{"role": "tool", "tool_call_id": each.call_id, "content": each.output} for each in results]
        case CallForm.OPENAI_RESPONSES:
            return [
                {"type": "function_call_output", "call_id": each.call_id, "output": each.output} for each in results
            ]
        case CallForm.ANTHROPIC:
            blocks = [
                {
                    "type": "tool_result",
                    "tool_use_id": each.call_id,
                    "content": each.output,
                    "is_error": _is_failed(each),
                }
                for each in results
            ]
            return [{"role": "user", "content": blocks}]
        case CallForm.GEMINI:
            return [{"role": "user", "parts": [{"functionResponse": _format_gemini(each)} for each in results]}]
    return [{"role": "user", "content": "\n".join(_format_text(form, each) for each in results)}]


def _format_gemini(result: FunctionCallResult) -> dict[str, Any]:
    response = {"error" if _is_failed(result) else "output": result.output}
    answer: dict[str, Any] = {"name": result.func_name, "response": response}
    # Gemini's API gives ids to some calls only, and refuses an empty one.
    return {"id": result.call_id, **answer} if result.call_id else answer


def _format_text(form: CallForm, result: FunctionCallResult) -> str:
    if form is CallForm.REACT:
        return f"Observation: {result.output}"
    if form is CallForm.TOOL_CALL:
        return _wrap("tool_response", {"name": result.func_name, "content": result.output})
    answer = {
        "name": result.func_name,
        "call_objective": result.call_objective,
        "status": result.status.value,
        "output": result.output,
    }
    return _wrap("function_call_result", answer)


def _wrap(tag: str, answer: dict[str, Any]) -> str:
    # A closing tag in a tool's output must not end the block: "<\/" is the same text in JSON.
    content = json.dumps(answer, ensure_ascii=False).replace("</", "<\\/")
    return f"<{tag}>\n{content}\n</{tag}>"


def _is_failed(result: FunctionCallResult) -> bool:
    return result.status is FunctionCallStatus.FAILED
