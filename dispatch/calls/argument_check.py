"""Checks the arguments of a call against the schema of its tool, where the policy's ``check-arguments`` says so."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from dispatch.calls.call_state import CallOptions
from dispatch.calls.resolution.resolved_tool import ResolvedTool
from dispatch.catalog import ToolDescriptor
from dispatch.messaging.wire.codec import json_text
from dispatch.schemas import InvalidSchemaError, Mistake
from dispatch.schemas.mistake import join_mistakes
from dispatch.schemas.validator_cache import ValidatorCache

_log = logging.getLogger("dispatch.calls")


def must_check_arguments(tool: ResolvedTool, options: CallOptions) -> bool:
    """Return whether the policy of ``tool`` requires that the arguments of a call are checked."""
    if options.by_model or tool.is_local:
        return tool.policy.check_arguments != "never" and tool.descriptor is not None
    return tool.policy.check_arguments == "always" and tool.descriptor is not None


class ArgumentCheck:
    """Finds the mistakes in the arguments of calls, for one dispatcher. Validation needs the extra ``schema``; without it a
    warning is logged once, and the tool itself finds the mistakes."""

    def __init__(self) -> None:
        self._validators: ValidatorCache[ToolDescriptor] = ValidatorCache(schema_of_arguments)
        self._is_off = False

    def find_mistakes(self, tool: ResolvedTool, arguments: Mapping[str, Any]) -> tuple[Mistake, ...]:
        """Return all mistakes of ``arguments``, which can be written as JSON."""
        assert tool.descriptor is not None  # must_check_arguments
        if self._is_off:
            return ()
        try:
            validator = self._validators.get(tool.descriptor)
        except ImportError as error:
            self._is_off = True  # perf: Python searches its path at every import of a module that is missing
            _log.warning("Arguments are not checked before calls. %s", error)
            return ()
        except InvalidSchemaError as error:  # the descriptor was read without the extra
            return (
                Mistake("", f"could not be checked: the tool has no valid schema ({join_mistakes(error.mistakes)})"),
            )
        if not validator.find_mistakes(arguments if isinstance(arguments, dict) else dict(arguments)):
            return ()
        # As the tool receives them: a date is a text, a dataclass an object.
        return validator.find_mistakes(msgspec.json.decode(json_text(arguments, "arguments")))


def schema_of_arguments(descriptor: ToolDescriptor) -> Mapping[str, Any]:
    """Return the schema by which arguments are checked, the one that models are shown."""
    return descriptor.parameters
