"""The result of a call, and its form for a model: formatted, validated, cut, and stored for reading page by page."""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import sys
import time
import unicodedata
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, NoReturn

import msgspec

from dispatch._internal import (
    is_kind,
    read_field,
    read_text,
    scalar_text,
    scalar_value,
    type_name,
    unwrap,
    yield_to_others,
)
from dispatch.documents import is_whole
from dispatch.errors import DispatchError, ErrorType, InvalidArgumentsError, Outcome, ToolError
from dispatch.schemas import Mistake, ValidatorCache, join_mistakes


class ResultContent(msgspec.Struct, frozen=True):
    """What a result has besides its text, as JSON values in the form of MCP.

    Attributes:
        blocks: all parts of the result in their order: texts, images, audio, links and embedded resources.
        structured: the result as a JSON value; None: there is none.
    """

    blocks: tuple[Mapping[str, Any], ...] = ()
    structured: Any = None


class CallResult(msgspec.Struct, frozen=True):
    """The result of one call.

    Attributes:
        tool: name of the tool.
        outcome: the one :class:`~dispatch.Outcome` of the call.
        text: the reply, or the concatenated chunks of a stream; ``""`` unless ``outcome`` is SUCCESS.
        error: what :meth:`Dispatcher.call` would raise; None for SUCCESS.
        duration: seconds from the call to its end.
        attempts: requests that were sent; 0 when none was.
        chunks: messages of the reply.
        request_id: the property ``id`` of the last attempt, ``""`` when nothing was sent.
        instance: id of the service instance that replied, None when it gives none.
        content: all parts of the result in their order, as content blocks of MCP (texts, images, audio, links); empty unless
            the tool is one of an MCP server. ``text`` has the parts that a model reads.
        structured_content: the result as a JSON value, from a tool of an MCP server; None: there is none.
    """

    tool: str
    outcome: Outcome
    text: str = ""
    error: DispatchError | None = None
    duration: float = 0.0
    attempts: int = 0
    chunks: int = 0
    request_id: str = ""
    instance: str | None = None
    content: tuple[Mapping[str, Any], ...] = ()
    structured_content: Any = None

    @property
    def ok(self) -> bool:
        """Whether the call succeeded."""
        return self.error is None

    def as_dict(self) -> dict[str, Any]:
        """Return the result as plain values, for ``--json``."""
        error = None if self.error is None else self.error.as_dict()
        content = [dict(block) for block in self.content]
        own = {"outcome": str(self.outcome), "error": error, "duration": round(self.duration, 6), "content": content}
        return {**msgspec.structs.asdict(self), **own}


def read_tool_error(raised: BaseException) -> tuple[str, str]:
    """Return type and message of the error that the caller of a tool gets, which has raised ``raised``: those of a
    :class:`DispatchError`, otherwise the name of the class and the text."""
    raised = unwrap(raised)
    if is_kind(raised, DispatchError):
        with contextlib.suppress(BaseException):  # a property of its class may raise
            return read_text(raised.type), read_text(raised.message)
    if is_kind(raised, asyncio.CancelledError):
        return ErrorType.CANCELLED, "The tool was cancelled while it ran, and may have been executed in part."
    name, text = type_name(raised), read_text(raised)
    if _has_text_of_key_error(raised) or (text and not any(map(str.isalpha, text))):  # KeyError('x'), SystemExit(3)
        text = f"{name}: {text}"
    return name, text


def _has_text_of_key_error(raised: BaseException) -> bool:
    """Return whether the text is nothing but the key."""
    return (
        is_kind(raised, KeyError)
        and getattr(type(raised), "__str__", None) is KeyError.__str__
        and bool(read_field(raised, "args"))
    )


# Part of a stored result.


PAGE_CHARS: Final = 40_000
"""Characters of a page by default: below the default ``max-result-chars``, so that a page is not cut again."""


class ResultPage(msgspec.Struct, frozen=True):
    """Part of a result.

    Attributes:
        text: its characters.
        offset: position of its first character in the result.
        total: characters of the whole result.
    """

    text: str
    offset: int
    total: int

    @property
    def next_offset(self) -> int | None:
        """Where the next page begins; None: this is the last one."""
        end = self.offset + len(self.text)
        return end if end < self.total else None


# Where a long text may be cut: behind a line, and in JSON behind a value.


_JSON_TOKEN: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|,', re.DOTALL)
"""A text (its end may be beyond the searched part), whose commas separate nothing, or a comma that separates values. Each
alternative begins with another character: the search is linear."""
_MAX_MARKS: Final = 16
"""Combining characters behind one letter. Emoji sequences and real scripts have fewer."""
_JOINERS: Final = "\u200c\u200d\ufe0e\ufe0f"
"""Joiners and variation selectors, which belong to the character before them."""


def find_cut(text: str, limit: int) -> int:
    """Return how many characters of ``text`` to show, at most ``limit``: to the end of a value for JSON, else of a line,
    else of a word, else of a character. Places in the first half of the limit are not used, so that a text with one long
    line is not cut to nothing."""
    if len(text) <= limit:
        return len(text)
    least = limit // 2
    if is_json(text):
        cut = find_end_of_value(text, limit)
        if cut > least:
            return cut
    for separator in ("\n", " "):
        cut = text.rfind(separator, 0, limit) + 1
        if cut > least:
            return cut
    return _find_end_of_character(text, limit)


def is_json(text: str) -> bool:
    """Return whether ``text`` is a JSON object or list."""
    if text.lstrip(" \t\r\n")[:1] not in ("{", "["):
        return False
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return False
    return True


def find_end_of_value(text: str, limit: int) -> int:
    """Return the position behind the last comma between two values in the first ``limit`` characters; 0: there is none."""
    end = 0
    for token in _JSON_TOKEN.finditer(text, 0, limit):
        if token[0] == ",":
            end = token.end()
    return end


def _find_end_of_character(text: str, limit: int) -> int:
    """Return a position at ``limit``, or shortly before it, where no letter is separated from its combining characters."""
    for position in range(limit, max(limit - _MAX_MARKS, 0), -1):
        previous, following = text[position - 1], text[position]
        if not unicodedata.combining(following) and following not in _JOINERS and previous != "\u200d":
            return position
    return limit


# The answer of a tool to a model.


class ToolAnswer(NamedTuple):
    """What a model reads after a call.

    Attributes:
        text: the result, or the error text: ``{"error", "message", "retryable", "retry_after", "alternatives"}``.
        is_error: the call failed.
        error: of the call; None: it succeeded, or the answer does not match the tool's output schema.
    """

    text: str
    is_error: bool
    error: DispatchError | None = None

    @classmethod
    def of_error(cls, error: DispatchError) -> ToolAnswer:
        """Return the answer of a call that failed, or was not executed."""
        return cls(ResultFormatter.format_error(error), True, error)

    @classmethod
    def of_content(cls, content: Mapping[str, Any], error: DispatchError | None) -> ToolAnswer:
        """Return the answer with the texts of ``content`` (:meth:`~dispatch.results.ResultFormatter.format`)."""
        text = "\n".join(each["text"] for each in content["content"])
        return cls(text, bool(content.get("isError")), error)


# The tool by which a model reads the rest of a long result.


READ_RESULT: Final = "read_result"
"""Name of the tool."""


class ReadResultTool:
    """A tool for :func:`dispatch.calling.call_function` and adapters. It reads results of one user.

    Attributes:
        name: ``read_result``.
        description: text by which the model chooses it.
        read_only: True.
        destructive: False.
        idempotent: True.
    """

    name = READ_RESULT
    description = "Read more of a long result. A cut result names its handle, and the offset of what is missing."
    read_only = True
    destructive = False
    idempotent = True

    def __init__(self, store: ResultStore, user: str = "") -> None:
        self._store = store
        self.user = user

    @property
    def parameters(self) -> dict[str, Any]:
        """JSON Schema of the arguments."""
        return {
            "type": "object",
            "properties": {
                "handle": {"type": "string", "description": "Handle of the result, as the cut result names it"},
                "offset": {
                    "type": "integer",
                    "minimum": 0,
                    "default": 0,
                    "description": "Number of characters before the page",
                },
                "limit": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": PAGE_CHARS,
                    "default": PAGE_CHARS,
                    "description": "Characters of the page, at most",
                },
            },
            "required": ["handle"],
            "additionalProperties": False,
        }

    async def invoke(self, handle: str, offset: int = 0, limit: int = PAGE_CHARS) -> str:
        """Return a page. Behind each page but the last, a line names the offset of the next one.

        Raises:
            InvalidArgumentsError: as :meth:`ResultStore.read`.
        """
        await yield_to_others()
        most = min(limit, PAGE_CHARS) if isinstance(limit, int) else limit
        page = self._store.read(handle, offset=offset, limit=most, user=self.user)
        if page.next_offset is None:
            return page.text
        return f"{page.text}\n\n{describe_page(page.next_offset - page.offset, page.total, page.next_offset, handle)}"

    async def answer(self, arguments: Mapping[str, Any], *, user: str | None = None, context: Any = None) -> ToolAnswer:
        """Return a page, or the error text, for arguments that a model wrote; see :meth:`dispatch.BoundTool.answer`."""
        await yield_to_others()
        reader = self if user is None else ReadResultTool(self._store, user)
        unknown = sorted(arguments.keys() - self.parameters["properties"].keys())
        try:
            if unknown or "handle" not in arguments:
                problem = f"there is no argument {unknown[0]!r}" if unknown else "the argument 'handle' is missing"
                message = f"The result was not read: {problem}. Correct the arguments."
                raise InvalidArgumentsError(ErrorType.INVALID_ARGUMENTS, message)
            return ToolAnswer(await reader.invoke(**arguments), False)
        except DispatchError as error:
            return ToolAnswer.of_error(error)

    def __repr__(self) -> str:
        return f"ReadResultTool(user={self.user!r})"


def describe_page(shown: int, total: int, next_offset: int, handle: str) -> str:
    """Return the line behind a part of a result: how much is missing, and how to read on."""
    return (
        f"[{shown:,} of {total:,} characters are shown, {total - next_offset:,} are missing behind them. "
        f'Read on: {READ_RESULT}(handle="{handle}", offset={next_offset})]'
    )


# Whole results, for reading page by page: for an hour, in bounded memory, by the user to whom they belong.


RETENTION_S: Final = 3600.0
"""Seconds for which a result can be read: longer than most conversations of an agent last."""
MAX_BYTES: Final = 64 * 1024 * 1024
"""Memory of all results together: the largest reply that the default policy accepts."""
_ENTRY_BYTES: Final = 500
"""Memory of an entry besides its text: measured with many short ones."""


class _Entry(msgspec.Struct, frozen=True):
    user: str
    text: str
    size: int
    expires: float


class ResultStore:
    """Results by handle. A handle cannot be guessed, and belongs to its user: to others it is unknown.

    When the memory is exhausted, the oldest result of the user with the most memory is dropped: many results of one user do
    not displace the few of another.

    Args:
        max_bytes: memory of all results.
        clock: returns seconds; monotonic.
        new_handle: returns an unguessable text.
    """

    def __init__(
        self,
        *,
        max_bytes: int = MAX_BYTES,
        clock: Callable[[], float] = time.monotonic,
        new_handle: Callable[[], str] = lambda: secrets.token_urlsafe(16),
    ) -> None:
        self._max_bytes = max_bytes
        self._clock = clock
        self._new_handle = new_handle
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        """In the order in which they expire."""
        self._handles_of: dict[str, OrderedDict[str, None]] = {}
        self._bytes_of: dict[str, int] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def size(self) -> int:
        """Bytes of memory in use."""
        return self._bytes

    def add(self, text: str, user: str = "") -> str | None:
        """Store a result of ``user`` and return its handle; None: it is larger than the memory of the store."""
        now = self._clock()
        self._drop_expired(now)
        size = sys.getsizeof(text) + _ENTRY_BYTES
        if size > self._max_bytes:
            return None
        while self._bytes + size > self._max_bytes:
            largest = max(self._bytes_of, key=lambda each: self._bytes_of[each])
            self._drop(next(iter(self._handles_of[largest])))
        handle = self._new_handle()
        self._entries[handle] = _Entry(user, text, size, now + RETENTION_S)
        self._handles_of.setdefault(user, OrderedDict())[handle] = None
        self._bytes_of[user] = self._bytes_of.get(user, 0) + size
        self._bytes += size
        return handle

    def read(self, handle: str, *, offset: int = 0, limit: int = PAGE_CHARS, user: str = "") -> ResultPage:
        """Return at most ``limit`` characters of a result from ``offset`` on. Pages that follow each other are together the
        result, without loss.

        Raises:
            InvalidArgumentsError: ``unknown-result``: the handle is unknown, expired, or another user's;
                ``invalid-arguments``: an offset outside of the result, or a limit below 1.
        """
        self._drop_expired(self._clock())
        entry = self._entries.get(handle) if isinstance(handle, str) else None
        if entry is None or entry.user != user:
            raise InvalidArgumentsError(
                ErrorType.UNKNOWN_RESULT,
                "No tool was executed: no stored result has this handle; results are stored for "
                f"{RETENTION_S / 60:g} minutes. Give the handle as the cut result names it, or call the tool again.",
            )
        total = len(entry.text)
        if not is_whole(offset) or not 0 <= offset <= total:
            _refuse("offset", f"a whole number from 0 to {total}", offset)
        if not is_whole(limit) or limit < 1:
            _refuse("limit", "a whole number above 0", limit)
        return ResultPage(entry.text[offset : offset + limit], offset, total)

    def tool(self, user: str = "") -> ReadResultTool:
        """Return the tool ``read_result``, by which a model reads the results of ``user``."""
        return ReadResultTool(self, user)

    def _drop_expired(self, now: float) -> None:
        while self._entries:
            handle, entry = next(iter(self._entries.items()))
            if entry.expires > now:
                return
            self._drop(handle)

    def _drop(self, handle: str) -> None:
        entry = self._entries.pop(handle)
        self._bytes -= entry.size
        del self._handles_of[entry.user][handle]
        self._bytes_of[entry.user] -= entry.size
        if not self._handles_of[entry.user]:
            del self._handles_of[entry.user], self._bytes_of[entry.user]


def _refuse(name: str, expected: str, given: object) -> NoReturn:
    raise InvalidArgumentsError(
        ErrorType.INVALID_ARGUMENTS,
        f"The result was not read: {name} must be {expected}, not {given!r:.40}. Correct the arguments.",
    )


# Results and errors of calls as content for a model.


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
            schema: the tool's ``output-schema``; the same object for each call, because it is compiled once.
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
        validator = self._validators.get(schema)
        if not isinstance(value, str):
            text = _write_json(value, indent=-1)
            # Validated as it is written: a dataclass is an object, and a date is a text.
            return text, validator.find_mistakes(msgspec.json.decode(text))
        try:
            parsed = msgspec.json.decode(value)
            text = msgspec.json.format(value, indent=-1)
        except (msgspec.MsgspecError, RecursionError, UnicodeError):
            return value, validator.find_mistakes(value)
        mistakes = validator.find_mistakes(parsed)
        # The answer 42 of a tool whose answers are texts is the text "42".
        if mistakes and not validator.find_mistakes(value):
            return value, ()
        return (value, mistakes) if mistakes or isinstance(parsed, str) else (text, ())

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


__all__ = ["ReadResultTool", "ResultFormatter", "ResultPage", "ResultStore"]
