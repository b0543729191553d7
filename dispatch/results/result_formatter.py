"""Results and errors of calls as content for a model."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from dispatch._internal.utf8 import scalar_text, scalar_value
from dispatch.errors import DispatchError, ErrorType, ToolError
from dispatch.result import CallResult
from dispatch.results.cutting import find_cut
from dispatch.results.read_result_tool import describe_page
from dispatch.results.result_store import ResultStore
from dispatch.schemas import Mistake, SchemaValidator
from dispatch.schemas.mistake import join_mistakes
from dispatch.schemas.validator_cache import ValidatorCache

_log = logging.getLogger("dispatch.results")

MAX_CHARS: Final = 50_000
"""Default of the policy's ``max-result-chars``."""
_NOTICE_CHARS: Final = 250
"""Room for the line behind a cut text."""


class ResultFormatter:
    """Formats results for a model.

    Args:
        store: where the whole text of a cut result is stored; None: the rest of it is lost.
    """

    def __init__(self, store: ResultStore | None = None) -> None:
        self._store = store
        self._validators: ValidatorCache[Mapping[str, Any] | bool] = ValidatorCache(lambda schema: schema)
        self._is_off = False

    def format(
        self,
        result: CallResult | object,
        schema: Mapping[str, Any] | bool | None = None,
        *,
        max_chars: int = MAX_CHARS,
        user: str = "",
    ) -> dict[str, Any]:
        """Return ``{"content": [{"type": "text", "text": …}]}``, with ``"isError": True`` for a failed call.

        A text is unchanged; another value is JSON indented by 2. With ``schema`` a value is validated, and written as
        compact JSON; when it does not match, the content is an ``invalid-output`` error, which names path and fault, and the
        answer behind it. A text longer than ``max_chars`` is cut behind a line, or behind a value of JSON, and says how much
        is missing and how to read it.

        Args:
            result: of a call, or the value that a function returned.
            schema: the tool's ``output-schema``; the same object for each call, because it is compiled once. Validation
                needs the extra ``schema``; without it a warning is logged once.
            max_chars: characters of a text, with the line behind a cut; a limit below 250 does not shorten that line.
            user: to whom the stored rest belongs.

        Raises:
            InvalidSchemaError: ``schema`` is no JSON Schema, or refers to an address.
        """
        tool = "The tool"
        if isinstance(result, CallResult):
            tool = f"Tool '{result.tool}'"
            if result.error is not None:
                return _content(self._format_error(result.error, max_chars, user), is_error=True)
            if result.structured_content is not None:
                schema = None  # it is what the schema describes, and MCP's client has validated it; the text is free
            result = result.text
        text, mistakes = self._write(result, schema)
        shown = self._cut(text, max_chars, user)
        if not mistakes:
            return _content(shown)
        return _content(
            self._format_error(error_from_invalid_output(tool, mistakes), max_chars, user), shown, is_error=True
        )

    @staticmethod
    def format_error(error: DispatchError) -> str:
        """Return the JSON text of ``error`` for a model: ``error`` (its type), ``message``, ``retryable``, ``retry_after``
        (seconds, or null) and ``alternatives`` (names of tools)."""
        return _write_error(error, error.message)

    def _format_error(self, error: DispatchError, max_chars: int, user: str) -> str:
        text = _write_error(error, error.message)
        if len(text) <= max_chars:
            return text
        # The message of a tool is as long as the tool likes. It is cut, so that the text remains JSON.
        room = max(max_chars - (len(text) - len(error.message)), 0)
        return _write_error(error, self._cut(error.message, min(room, len(error.message) - 1), user))

    def _write(self, value: object, schema: Mapping[str, Any] | bool | None) -> tuple[str, tuple[Mistake, ...]]:
        """Return the text of ``value`` and its mistakes."""
        if schema is None:
            return (value, ()) if isinstance(value, str) else (_write_json(value, indent=2), ())
        validator = self._get_validator(schema)
        if not isinstance(value, str):
            text = _write_json(value, indent=-1)
            # Validated as it is written: a dataclass is an object, and a date is a text.
            return text, validator.find_mistakes(msgspec.json.decode(text)) if validator else ()
        try:
            parsed = msgspec.json.decode(value)
            text = msgspec.json.format(value, indent=-1)
        except (msgspec.MsgspecError, RecursionError, UnicodeError):
            return value, validator.find_mistakes(value) if validator else ()
        mistakes = validator.find_mistakes(parsed) if validator else ()
        # The answer 42 of a tool whose answers are texts is the text "42".
        if mistakes and validator is not None and not validator.find_mistakes(value):
            return value, ()
        return (value, mistakes) if mistakes or isinstance(parsed, str) else (text, ())

    def _get_validator(self, schema: Mapping[str, Any] | bool) -> SchemaValidator | None:
        if self._is_off:
            return None
        try:
            return self._validators.get(schema)
        except ImportError as error:
            self._is_off = True  # perf: Python searches its path at every import of a module that is missing
            _log.warning("Results are not compared with their output schemas. %s", error)
            return None

    def _cut(self, text: str, max_chars: int, user: str) -> str:
        if len(text) <= max_chars:
            return text
        cut = find_cut(text, max(max_chars - _NOTICE_CHARS, 0))
        handle = None if self._store is None else self._store.add(text, user)
        if handle is None:
            notice = (
                f"[{cut:,} of {len(text):,} characters are shown, {len(text) - cut:,} are missing behind them, and were not "
                "stored. Ask the tool for less.]"
            )
        else:
            notice = describe_page(cut, len(text), cut, handle)
        return f"{text[:cut]}\n\n{notice}"


def error_from_invalid_output(tool: str, mistakes: Sequence[Mistake]) -> ToolError:
    """Return the error of an answer that does not match the ``output-schema``. ``tool``: the subject of the sentence."""
    return ToolError(
        ErrorType.INVALID_OUTPUT,
        f"{tool} was executed, but its answer, which follows, does not match its output schema: "
        f"{join_mistakes(mistakes)}. Use the answer with care, and report the fault to the operator of the tool.",
    )


def _write_error(error: DispatchError, message: str) -> str:
    values = {
        "error": error.type,
        "message": message,
        "retryable": error.retryable,
        "retry_after": error.retry_after,
        "alternatives": list(error.alternatives),
    }
    return msgspec.json.encode(scalar_value(values)).decode()


def _write_json(value: object, *, indent: int) -> str:
    try:
        return msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=indent).decode()
    except (
        TypeError,
        ValueError,
        RecursionError,
        msgspec.MsgspecError,
    ):  # keys that are no texts, half of a surrogate pair, a cycle
        return str(value)


def _content(*texts: str, is_error: bool = False) -> dict[str, Any]:
    content: dict[str, Any] = {"content": [{"type": "text", "text": scalar_text(text)} for text in texts]}
    if is_error:
        content["isError"] = True
    return content
