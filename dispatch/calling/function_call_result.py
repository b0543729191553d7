"""The result of one call of a model, with the names of Chat2Graph."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from dispatch.calling.parsed_call import CallForm


class FunctionCallStatus(Enum):
    """How a function call ended."""

    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"


@dataclass
class FunctionCallResult:
    """Result of one function call in the output of a model.

    Attributes:
        func_name: name of the tool; empty: the call could not be read.
        func_args: arguments by name.
        call_objective: the purpose that the model gave.
        output: result or error, as text for the model.
        status: whether the tool was executed and succeeded.
        form: the syntax of the call, which decides the form of the answer. Not in Chat2Graph.
        call_id: the id that the model's API gave to the call; empty in texts. Not in Chat2Graph.
    """

    func_name: str
    func_args: dict[str, Any]
    call_objective: str
    output: str
    status: FunctionCallStatus = FunctionCallStatus.SUCCEEDED
    form: CallForm = CallForm.FUNCTION_CALL
    call_id: str = ""

    @classmethod
    def error(cls, error_message: str) -> FunctionCallResult:
        """Return the result of a call that could not be read."""
        return cls("", {}, "", error_message, FunctionCallStatus.FAILED)
