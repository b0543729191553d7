"""Read the calls in a model's output: at once, or chunk by chunk as the model writes."""

from __future__ import annotations

from typing import Any, Final

from dispatch.calling.call_objects import SHAPES
from dispatch.calling.native_calls import read_native, read_native_text
from dispatch.calling.parsed_call import MAX_TEXT_CHARS, CallForm, ParsedCall
from dispatch.calling.text_scanner import LOOK_BACK, TextScanner

_FREE_ATTEMPTS: Final = 8
"""Marks behind which an incomplete call is read again; from then on the text must have grown by a quarter, so that the
whole of a stream costs linear time."""


class Parser:
    """Finds calls in a stream of text. Any division into chunks gives the same calls as the whole text at once."""

    def __init__(self) -> None:
        self._scanner = TextScanner()
        self._text = ""
        self._start = 0
        self._new: list[str] = []
        self._mark: str | None = None
        self._tail = ""
        self._size = 0
        self._waiting = 0
        self._attempts = 0
        self._threshold = 0
        self._is_closed = False

    def feed(self, chunk: str) -> list[ParsedCall]:
        """Add text and return the calls that it completes.

        Raises:
            ValueError: the parser is closed.
        """
        if self._is_closed:
            raise ValueError("the parser is closed; create one for each text")
        remaining = MAX_TEXT_CHARS - self._size
        self._size += len(chunk)
        if self._scanner.is_over or remaining <= 0:
            return []
        chunk = chunk[:remaining]
        self._new.append(chunk)
        self._waiting += len(chunk)
        if self._mark is not None and not self._should_read(chunk, self._mark):
            return []
        return self._read(is_final=False)

    def close(self) -> list[ParsedCall]:
        """End the text and return the rest: a call without an end, and the report of what is beyond the limits."""
        if self._is_closed:
            return []
        self._is_closed = True
        calls = self._read(is_final=True)
        if self._size > MAX_TEXT_CHARS and not self._scanner.is_over:
            calls.append(_reject_rest(self._size))
        return calls

    def _should_read(self, chunk: str, mark: str) -> bool:
        recent = self._tail + chunk
        self._tail = recent[-(len(mark) - 1) :] if len(mark) > 1 else ""
        if mark not in recent:
            # A closed call is followed by other text; a wait that no mark ends must not last to the end of a long text.
            return False
        self._attempts += 1
        return self._attempts <= _FREE_ATTEMPTS or self._waiting >= self._threshold

    def _read(self, *, is_final: bool) -> list[ParsedCall]:
        text = self._text + "".join(self._new)
        self._new.clear()
        start = self._start
        calls, position, mark = self._scanner.scan(text, start, is_final=is_final)
        if mark != self._mark or position != start:
            self._attempts = 0
            self._tail = text[-(len(mark) - 1) :] if mark is not None and len(mark) > 1 else ""
        self._mark = mark
        dropped = max(0, position - LOOK_BACK)
        self._scanner.drop(text, dropped)
        self._text = text[dropped:]
        self._start = position - dropped
        self._waiting = len(self._text)
        self._threshold = self._waiting + self._waiting // 4
        return calls


def parse(output: str | Any) -> list[ParsedCall]:
    """Return the calls in a model's output, in their order; a call that cannot be read has its ``error`` set.

    Args:
        output: a model's text, or a decoded message, response or list of parts in the native form of OpenAI (Chat,
            Responses), Anthropic or Gemini. A text that is such JSON as a whole is read in the same way.
    """
    if not isinstance(output, str):
        return read_native(output)
    native = read_native_text(output) if len(output) <= MAX_TEXT_CHARS else None
    if native is not None:
        return native
    scanner = TextScanner()
    calls, _, _ = scanner.scan(output[:MAX_TEXT_CHARS], 0, is_final=True)
    if len(output) > MAX_TEXT_CHARS and not scanner.is_over:
        calls.append(_reject_rest(len(output)))
    return calls


def _reject_rest(size: int) -> ParsedCall:
    return ParsedCall(
        name="",
        form=CallForm.FUNCTION_CALL,
        error=f"The text has {size:,} characters; calls behind the first {MAX_TEXT_CHARS:,} were not executed. "
        f"Write a shorter text with each call as {SHAPES[CallForm.FUNCTION_CALL]}.",
    )
