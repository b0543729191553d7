"""Find the calls in the text of a model, from left to right, each place once: at once, or chunk by chunk.

The scanner is a pure function of text and state. Where the end of the text decides and more may follow (``is_final`` false),
it stops before the mark in question and says which mark can end the wait.
"""

from __future__ import annotations

import re
from typing import Any, Final

from msgspec import structs

from dispatch.calling.json_repair import JsonFaultError, JsonValue, MarkFinder, find_comment_end, read_json
from dispatch.calling.native import (
    MAX_CALLS,
    SHAPES,
    CallForm,
    ParsedCall,
    Place,
    convert_value,
    finish_call,
    quote_around,
    read_bare,
    read_native,
    read_native_text,
    write_error,
)

MAX_TEXT_CHARS: Final = 1 << 20
"""Characters of a text that are read: 1 MiB of ASCII. No model of today writes as much in one turn."""
_MARK: Final = re.compile(
    r"<(?P<tag>function_call|tool_calls?)>"
    r"|```(?P<fence>[A-Za-z_]{0,13})"
    r"|<(?P<ends>/?)(?P<thinking>think|thinking|shallow_thinking|deep_thinking|reasoning|thought)>"
    r"|^[ \t]{0,8}(?P<line>Thought|Action|Observation|Final Answer):"
    # What models have learned to write: Mistral, Llama, Phi and Granite, Command, functionary, DeepSeek and Kimi, gpt-oss.
    r"|(?P<token>\[TOOL_CALLS\]|<\|python_tag\|>|<\|tool_call\|>|<\|START_ACTION\|>|<function=|<invoke name="
    r"|<[|\uff5c]tool[_▁]call[_▁]begin[|\uff5c]>|\bto=functions\.)",
    re.MULTILINE,
)
_HEADER: Final = re.compile(
    r"\s{0,9}(?:function<\uff5ctool▁sep\uff5c>)?(?:functions\.)?[\"']?(?P<name>[\w.-]{1,128})(?::[0-9]{1,9})?[\"']?\s{0,9}"
    r"(?:\[CALL_ID\][\w-]{1,64})?"
    r"(?:\[ARGS\]|<[|\uff5c]tool[_▁]sep[|\uff5c]>|<\|tool_call_argument_begin\|>|[^{}\n]{0,80}<\|message\|>|>)?"
    r"\s{0,9}(?:```(?:json)?\s{0,9})?(?=\{)"
)
"""Between a token and the arguments: the name of the tool, and what models write behind it."""
_LONGEST_HEADER: Final = 400
_TOKEN_ENDS: Final = ("<|", "<\uff5c", "</", "```", "[TOOL_CALLS]")
"""Beginnings of the tokens that follow a call."""
LONGEST_MARK: Final = 24
"""Characters of the longest mark, without the ones that a wait may hold back."""
LOOK_BACK: Final = 40
"""Characters in front of a place that decide about it: with blanks only, a tag begins a line."""
_TAG_FORMS: Final = {
    "function_call": CallForm.FUNCTION_CALL,
    "tool_call": CallForm.TOOL_CALL,
    "tool_calls": CallForm.TOOL_CALL,
}
_QUOTES: Final = frozenset("`'\"“\u2018«")
_MAX_BROKEN: Final = 16
"""Code blocks, and values behind tokens, that are invalid JSON and no call; and ends of a reasoning that drop calls. Later
ones are not read: reading each costs the length of the text."""
_BLANK: Final = re.compile(r"\s*+")
_INNER_FENCE: Final = re.compile(r"```[a-z]*+\s*+")
_EXTRA: Final = re.compile(r"[\s}\];`]*+")
_ACTION_NAME: Final = re.compile(r"[ \t]*+[\"'`*]{0,2}([^\s\"'`*<>{}()]{1,128})[\"'`*]{0,2}[ \t\r]*+(?=\n|\Z)")
_ARGS_LINE: Final = re.compile(r"\s*+(?:Args|Action Input):[ \t]*+")
_REACT_ENDS: Final = ("Observation:", "Thought:", "Final Answer:", "Action:", "```")
_REASONING_END: Final = re.compile(r"</(?:think|thinking|shallow_thinking|deep_thinking|reasoning|thought)>")
_OBJECTIVE: Final = "call_objective"
_FENCE_END: Final = "```"


class NeedMoreError(Exception):
    """More text is needed from ``start``; ``mark`` can end the wait, or any text if it is None."""

    def __init__(self, start: int, mark: str | None) -> None:
        super().__init__(mark)
        self.start = start
        self.mark = mark


class TextScanner:
    """Finds the calls of one text, which may come in parts.

    Args:
        is_whole: the text comes at once. Then the end of a reasoning without its beginning drops the calls in front of it.
        in_reasoning: the text begins with a reasoning.

    Attributes:
        count: calls so far, those with errors included.
        is_over: the limit of calls is reached; the rest is not read.
    """

    def __init__(self, *, is_whole: bool, in_reasoning: bool = False) -> None:
        self._is_whole = is_whole
        self._in_reasoning = in_reasoning
        self.count = 0
        self.is_over = False
        self._has_thought = False
        self._is_react_over = False
        self._broken = 0
        self._reasonings = 0
        self._origin = Place(0, 1, 1)
        self._calls: list[ParsedCall] = []
        self._finder = MarkFinder("")
        self._is_final = False

    def scan(self, text: str, start: int, *, is_final: bool) -> tuple[list[ParsedCall], int, str | None]:
        """Read ``text`` from ``start``.

        Returns:
            The calls, the index behind everything that is read, and the mark that a wait is for (None: any text).
        """
        self._calls = []
        self._finder = MarkFinder(text)
        self._is_final = is_final
        position = start
        if self._in_reasoning:
            end = _REASONING_END.search(text, start)
            self._in_reasoning = end is None
            position = max(start, len(text) - LONGEST_MARK) if end is None else end.end()
        try:
            while not (self.is_over or self._in_reasoning):
                found = _MARK.search(text, position)
                if found is None:
                    position = len(text) if is_final else max(position, len(text) - LONGEST_MARK)
                    break
                if not is_final and found.end() == len(text):
                    position = found.start()
                    break
                position = self._read_mark(found)
        except NeedMoreError as wait:
            return self._calls, wait.start, wait.mark
        return self._calls, len(text) if self.is_over else position, None

    def drop(self, text: str, count: int) -> None:
        """Note that the first ``count`` characters of ``text`` are dropped: later places count from behind them."""
        self._origin = self._locate(text, count)

    def _locate(self, text: str, position: int) -> Place:
        origin = self._origin
        lines = text.count("\n", 0, position)
        column = position - text.rfind("\n", 0, position) if lines else origin.column + position
        return Place(origin.position + position, origin.line + lines, column)

    def _read_mark(self, found: re.Match[str]) -> int:
        if found["tag"] is not None:
            return self._read_tag(found)
        if found["fence"] is not None:
            return self._read_fence(found)
        if found["thinking"] is not None:
            return self._skip_thinking(found)
        if found["token"] is not None:
            return self._read_token(found)
        return self._read_line(found)

    def _wait(self, start: int, mark: str | None) -> None:
        """Stop here unless the text is complete."""
        if not self._is_final:
            raise NeedMoreError(start, mark)

    def _add(self, call: ParsedCall) -> None:
        if self.is_over:
            return
        self.count += 1
        if self.count > MAX_CALLS:
            self.is_over = True
            reason = f"a text may have at most {MAX_CALLS} calls, and this one and all later ones are rejected"
            message = f"The call at line {call.line}, column {call.column} was not executed: {reason}. "
            error = f"{message}Write the calls that are still needed after the results of the others."
            call = structs.replace(call, args={}, error=error)
        self._calls.append(call)

    def _add_fault(
        self, form: CallForm, start: int, reason: str, position: int, end: int, *, truncated: bool = False
    ) -> None:
        """Add the error of the call at ``start``, with its fault at ``position``; the error shows nothing behind ``end``."""
        text = self._finder.text
        error = write_error(form, self._locate(text, position), reason, quote_around(text, position, start, end))
        place = self._locate(text, start)
        self._add(ParsedCall(name="", form=form, truncated=truncated, error=error, **place._asdict()))

    def _read(self, start: int, position: int, ends: tuple[str, ...], mark: str) -> JsonValue:
        """Read the value at ``position`` of the call at ``start``; wait where its end is not certain yet."""
        try:
            read = read_json(self._finder, position, ends)
        except JsonFaultError as fault:
            if fault.is_open or fault.position >= len(self._finder.text) - LONGEST_MARK:
                self._wait(start, mark)
            raise
        if read.truncated:
            self._wait(start, mark)
        return read

    # Tags

    def _read_tag(self, found: re.Match[str]) -> int:
        text, start = self._finder.text, found.start()
        closing = f"</{found['tag']}>"
        form = _TAG_FORMS[found["tag"]]
        if self._is_quoted(start):
            return found.end()
        position = self._skip_blank(found.end())
        fence = _INNER_FENCE.match(text, position)
        if fence is not None:
            position = fence.end()
        if position == len(text):
            self._wait(start, closing)
            if self._is_line_start(start):
                self._add_fault(form, start, "the text ends inside it", start, len(text), truncated=True)
            return len(text)
        if text[position] == "<" and found["tag"] == "tool_calls":  # around calls with tags of their own
            return found.end()
        if text[position] not in "{[":
            if len(text) - position < len(_FENCE_END) and text.startswith("`", position):
                self._wait(start, "`")
            return self._read_other_tag(found, form, closing)
        try:
            return self._read_tag_values(start, position, form, closing)
        except JsonFaultError as fault:
            return self._skip_fault(form, start, fault, closing)

    def _read_other_tag(self, found: re.Match[str], form: CallForm, closing: str) -> int:
        """Read a tag without JSON: at the beginning of a line with its closing tag it is a call, otherwise prose."""
        text, start = self._finder.text, found.start()
        if not self._is_line_start(start):
            return found.end()
        end = self._finder.find(closing, found.end())
        if end == len(text):
            self._wait(start, closing)
            return found.end()
        self._add_fault(form, start, "its content is not a JSON object", self._skip_blank(found.end()), end)
        return end + len(closing)

    def _read_tag_values(self, start: int, position: int, form: CallForm, closing: str) -> int:
        """Read the objects up to the closing tag; usually it is one."""
        text = self._finder.text
        place = self._locate(text, start)
        calls: list[ParsedCall] = []
        while True:
            read = self._read(start, position, (closing,), closing)
            if not calls and text.startswith(closing, read.end) and not read.repaired:
                calls = convert_value(read, form, place)  # perf: the most frequent case needs nothing of what follows
                behind = read.end
                break
            if read.truncated or read.repaired:
                self._check_for_tags(read, position, closing)
            behind, is_extra = self._skip_extra(read.end, closing)
            if behind == len(text) or text.startswith(closing, behind):
                if behind == len(text):
                    self._wait(start, closing)
                read = read._replace(repaired=read.repaired or is_extra)
                calls += convert_value(read, form, place)
                break
            found = convert_value(read, form, place)
            calls += found
            if self.count + len(calls) > MAX_CALLS:
                break  # all later ones are rejected unread
            if not found:
                raise JsonFaultError("an empty list is in front of another value", position)
            comma = text.startswith(",", behind)
            position = self._skip_blank(behind + 1) if comma else behind
            if is_extra or not text.startswith(("{", "["), position):
                if text.startswith(closing.replace("/", ""), behind) and not is_extra:
                    break  # the next call begins: the closing tag is missing
                if behind >= len(text) - LONGEST_MARK:
                    self._wait(start, closing)
                raise JsonFaultError("text follows behind the end of the JSON object", behind)
        for call in calls:
            self._add(call)
        return behind + len(closing) if text.startswith(closing, behind) else behind

    def _check_for_tags(self, read: JsonValue, position: int, closing: str) -> None:
        """Refuse a cut-off value in which the closing tag is part of a string: a quote is missing before the tag."""
        if read.truncated and self._finder.find(closing, position) < read.end:
            raise JsonFaultError("a string or bracket has no end", position)

    def _skip_extra(self, position: int, closing: str) -> tuple[int, bool]:
        """Skip blanks, comments and superfluous end brackets; return the index and whether there was more than blanks."""
        text = self._finder.text
        is_extra = False
        while True:
            found = _EXTRA.match(text, position)
            end = position if found is None else found.end()
            is_extra = is_extra or bool(text[position:end].strip().strip("`"))
            behind = find_comment_end(self._finder, end, (closing,))
            if behind == end:
                return end, is_extra
            position = behind
            is_extra = True

    # Tokens of models

    def _read_token(self, found: re.Match[str]) -> int:
        """Read the calls behind a token: objects with name and arguments, or a name and its arguments."""
        text, start, form = self._finder.text, found.start(), CallForm.TOOL_CALL
        if self._is_quoted(start) or self._broken == _MAX_BROKEN:
            return found.end()
        header = _HEADER.match(text, found.end())
        position = self._skip_blank(found.end()) if header is None else header.end()
        if not text.startswith(("{", "["), position):
            if len(text) - found.end() < _LONGEST_HEADER:
                self._wait(start, "{")
            if self._is_line_start(start):
                self._add_fault(form, start, "its arguments are not a JSON object", found.end(), found.end() + 80)
            return found.end()
        calls: list[ParsedCall] = []
        while text.startswith(("{", "["), position) and self.count + len(calls) <= MAX_CALLS:
            try:
                read = self._read(start, position, _TOKEN_ENDS, "}")
            except JsonFaultError as fault:
                for call in calls:
                    self._add(call)
                self._add_fault(form, start, fault.reason, fault.position, fault.position + LONGEST_MARK)
                return fault.position
            if header is not None:
                place = self._locate(text, start)._asdict()
                call = ParsedCall(
                    name=header["name"], form=form, repaired=read.repaired, truncated=read.truncated, **place
                )
                self._add(finish_call(call, read.value))
                return read.end
            if not read.value:
                self._broken += read.repaired
                return read.end
            calls += convert_value(read, form, self._locate(text, start))
            position, _ = self._skip_extra(read.end, _TOKEN_ENDS[0])
        if len(text) - position < len("//"):
            self._wait(start, None)
        for call in calls:
            self._add(call)
        return position

    # Code blocks

    def _read_fence(self, found: re.Match[str]) -> int:
        text, start = self._finder.text, found.start()
        if found["fence"] == "tool_code":  # Gemma's calls are in Python
            end = self._skip_to(_FENCE_END, start, found.end())
            self._add_fault(CallForm.TOOL_CALL, start, "its content is not a JSON object", found.end(), end)
            return end
        is_tool_call = found["fence"] in _TAG_FORMS
        if found["fence"] != "json" and not is_tool_call:
            return found.end()
        position = self._skip_blank(found.end())
        if position == len(text):
            self._wait(start, _FENCE_END)
            return position
        if text[position] not in "{[":
            return found.end()
        # perf: JSON that is not a call is skipped unread. The objective precedes the arguments, which may hold fences.
        is_marked = is_tool_call or self._finder.find(_OBJECTIVE, position) < self._finder.find(_FENCE_END, position)
        is_first = self._origin.position == 0 and start <= LOOK_BACK and not text[:start].strip()
        may_be_whole = is_first and not is_marked
        if not is_tool_call and (self._broken == _MAX_BROKEN or not (is_marked or may_be_whole)):
            return self._skip_to(_FENCE_END, start, position)
        try:
            read = self._read(start, position, (_FENCE_END,), _FENCE_END)
        except JsonFaultError as fault:
            if may_be_whole:
                return self._skip_to(_FENCE_END, start, position)
            return self._skip_fault(CallForm.FENCE, start, fault, _FENCE_END)
        if may_be_whole:
            return self._read_whole_fence(start, read)
        end = self._skip_blank(read.end)
        if len(text) < end + len(_FENCE_END) and _FENCE_END.startswith(text[end:]):
            self._wait(start, _FENCE_END)
        values = read.value if isinstance(read.value, list) else [read.value]
        if is_tool_call or (values and all(_has_keys(value, read) for value in values)):
            for call in convert_value(read, CallForm.FENCE, self._locate(text, start)):
                self._add(call)
        elif read.repaired:
            self._broken += 1
        return end + len(_FENCE_END) if text.startswith(_FENCE_END, end) else read.end

    def _read_whole_fence(self, start: int, read: JsonValue) -> int:
        """Read a text that is nothing but a code block: calls as in a text that is nothing but JSON."""
        end = self._skip_to(_FENCE_END, start, read.end)
        if self._skip_blank(end) == len(self._finder.text) and not read.repaired and not read.truncated:
            self._wait(start, None)
            for call in read_bare(read, self._locate(self._finder.text, start)):
                self._add(call)
        return end

    # Lines

    def _read_line(self, found: re.Match[str]) -> int:
        text, start, word = self._finder.text, found.start(), found["line"]
        if word == "Thought":
            self._has_thought = True
        elif word == "Final Answer" or (word == "Observation" and self._has_thought):
            # An observation in a model's text is invented, and so are the actions behind it.
            self._is_react_over = True
        if word != "Action" or self._is_react_over:
            return found.end()
        name = _ACTION_NAME.match(text, found.end())
        if name is None or name.end() == len(text):
            self._wait_for_line(start, found.end())
        if name is None:
            return found.end()
        args = _ARGS_LINE.match(text, name.end())
        behind = self._skip_blank(name.end() if args is None else args.end())
        if behind >= len(text) - LONGEST_MARK:
            self._wait(start, "\n" if args is None else "}")
        if args is None:
            return self._add_bare_action(start, name)
        self._has_thought = True
        call = ParsedCall(name=name[1], form=CallForm.REACT, **self._locate(text, start)._asdict())
        fence = _INNER_FENCE.match(text, behind)
        behind = behind if fence is None else fence.end()
        if behind == len(text) or text[behind] != "{":
            return self._add_without_object(call, args, behind)
        try:
            read = self._read(start, behind, _REACT_ENDS, "}")
        except JsonFaultError as fault:
            self._add_fault(CallForm.REACT, start, fault.reason, fault.position, fault.position + LONGEST_MARK)
            return fault.position
        call = structs.replace(call, repaired=read.repaired, truncated=read.truncated)
        self._add(finish_call(call, read.value))
        return read.end

    def _add_bare_action(self, start: int, name: re.Match[str]) -> int:
        """Add an action without arguments. Without a thought before it, 'Action: …' is prose."""
        if self._has_thought:
            place = self._locate(self._finder.text, start)
            self._add(ParsedCall(name=name[1], form=CallForm.REACT, **place._asdict()))
        return name.end()

    def _add_without_object(self, call: ParsedCall, args: re.Match[str], behind: int) -> int:
        text = self._finder.text
        start = call.position - self._origin.position
        self._wait_for_line(start, args.end())
        line_end = self._finder.find("\n", args.end())
        rest = text[args.end() : min(line_end, args.end() + 80)].strip()
        if rest.lower() in ("", "none", "null", "n/a"):
            self._add(call)
        else:
            self._add_fault(CallForm.REACT, start, "its arguments are no JSON object", args.end(), line_end)
        return line_end

    def _wait_for_line(self, start: int, position: int) -> None:
        if self._finder.find("\n", position) == len(self._finder.text):
            self._wait(start, "\n")

    def _skip_thinking(self, found: re.Match[str]) -> int:
        """Skip a model's reasoning: calls in it are drafts. Its beginning may be in the prompt."""
        if self._is_quoted(found.start()):
            return found.end()
        if found["ends"]:
            if self._is_whole and self._reasonings < _MAX_BROKEN:
                self._reasonings += 1
                self._calls.clear()
                self.count, self._has_thought, self._is_react_over = 0, False, False
            return found.end()
        return self._skip_to(f"</{found['thinking']}>", found.start(), found.end())

    # Places

    def _skip_to(self, mark: str, start: int, position: int) -> int:
        """Return the index behind the next ``mark``, or the end of the text; wait for it at ``start``."""
        text = self._finder.text
        end = self._finder.find(mark, position)
        if end == len(text):
            self._wait(start, mark)
        return min(end + len(mark), len(text))

    def _skip_fault(self, form: CallForm, start: int, fault: JsonFaultError, mark: str) -> int:
        """Add the error of the call at ``start``, and skip to its end."""
        end = self._skip_to(mark, start, fault.position)
        self._add_fault(form, start, fault.reason, fault.position, end)
        return end

    def _skip_blank(self, position: int) -> int:
        found = _BLANK.match(self._finder.text, position)
        return position if found is None else found.end()

    def _is_quoted(self, position: int) -> bool:
        return position > 0 and self._finder.text[position - 1] in _QUOTES

    def _is_line_start(self, position: int) -> bool:
        text = self._finder.text
        before = text[max(0, position - LOOK_BACK) : position]
        return not before.rpartition("\n")[2].strip()


def _has_keys(value: object, read: JsonValue) -> bool:
    if not isinstance(value, dict) or not {"name", "call_objective"} <= value.keys():
        return False
    return "args" in value or read.truncated


# Read the calls in a model's output: at once, or chunk by chunk as the model writes.


_FREE_ATTEMPTS: Final = 8
"""Marks behind which an incomplete call is read again; from then on the text must have grown by a quarter, so that the
whole of a stream costs linear time."""


class Parser:
    """Finds calls in a stream of text. Any division into chunks gives the same calls as the whole text at once. A text that
    begins as JSON is read at its end.

    Args:
        in_reasoning: the prompt ends with ``<think>``, so that the text begins with a reasoning whose calls are drafts. Of a
            whole text :func:`parse` finds out by itself.
    """

    def __init__(self, *, in_reasoning: bool = False) -> None:
        self._scanner = TextScanner(is_whole=False, in_reasoning=in_reasoning)
        self._first = "-" if in_reasoning else ""
        """Without blanks: the first two characters, or more of them. They say whether the text begins as JSON."""
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
        if self._first in ("", "["):
            self._first += "".join(chunk.split())
        if self._first in ("", "[") or self._is_json:
            return []
        self._waiting += len(chunk)
        if self._mark is not None and not self._should_read(chunk, self._mark):
            return []
        return self._read(is_final=False)

    def close(self) -> list[ParsedCall]:
        """End the text and return the rest: a call without an end, and the report of what is beyond the limits."""
        if self._is_closed:
            return []
        self._is_closed = True
        if self._is_json and self._size <= MAX_TEXT_CHARS:
            return parse("".join(self._new))
        calls = self._read(is_final=True)
        if self._size > MAX_TEXT_CHARS and not self._scanner.is_over:
            calls.append(_reject_rest(self._size))
        return calls

    @property
    def _is_json(self) -> bool:
        return self._first.startswith(("{", "[{", "[[", "[]"))

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
            Responses), Anthropic or Gemini, whose own text is not searched. A text that is such JSON as a whole is read in
            the same way, and so is one that is nothing but ``{"name", "parameters"}`` (Llama), or a list of them, also in a
            code block. None: a message without text.

    Raises:
        TypeError: ``output`` is something else, such as bytes or an object of an SDK.
    """
    if not isinstance(output, str):
        return read_native(output)
    native = read_native_text(output) if len(output) <= MAX_TEXT_CHARS else None
    if native is not None:
        return native
    scanner = TextScanner(is_whole=True)
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
