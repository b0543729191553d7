"""JSON as models write it: valid JSON unchanged, and a few repairs of invalid JSON, in linear time.

Valid JSON is decoded by the standard library and never repaired. Everything else is read by a recursive-descent reader that
never changes data inside strings.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, NamedTuple, NoReturn

from dispatch.calling.mark_finder import MarkFinder, find_comment_end
from dispatch.calling.parsed_call import MAX_DEPTH

PAYLOAD_START: Final = "__PAYLOAD_START__"
PAYLOAD_END: Final = "__PAYLOAD_END__"

_BLANKS: Final = re.compile(r"[ \t\r\n\ufeff\u00a0\u200b\u3000]*+")
# perf: 100 kB of comments or of short values must take less than 50 ms; a step of the reader takes 3 µs.
_PLAIN_COMMENTS: Final = re.compile(r"(?:[ \t\r\n]*+(?://|#)[^\n<`:]*+\n)++")
_SIMPLE: Final = r'(?:"(?:[^"\\\x00-\x1f]++|\\.)*+"|-?(?:0|[1-9][0-9]{0,300}+)(?:\.[0-9]++)?|true|false|null|\[\]|\{\})'
_QUOTED: Final = r"'(?:[^'\\\x00-\x1f]++|\\.)*+'"
_SIMPLE_ITEMS: Final = re.compile(rf"(?:[ \t\r\n]*+{_SIMPLE}[ \t\r\n]*+,)++")
_QUOTED_ITEMS: Final = re.compile(rf"(?:[ \t\r\n]*+{_QUOTED}[ \t\r\n]*+,)++")
_SIMPLE_MEMBERS: Final = re.compile(
    rf'(?:[ \t\r\n]*+"[^"\\\x00-\x1f]*+"[ \t\r\n]*+:[ \t\r\n]*+{_SIMPLE}[ \t\r\n]*+,)++'
)
_QUOTED_MEMBERS: Final = re.compile(rf"(?:[ \t\r\n]*+{_QUOTED}[ \t\r\n]*+:[ \t\r\n]*+{_QUOTED}[ \t\r\n]*+,)++")
_SINGLE_QUOTED: Final = re.compile(r"'((?:[^'\\]|\\.)*+)'", re.DOTALL)
_NEXT_QUOTE_OR_ESCAPE: Final = re.compile(r'\\.|"', re.DOTALL)
_ANY_QUOTE_OR_ESCAPE: Final = re.compile(r"\\.|[\"']")
_REQUOTED: Final = {"\\'": "'", '"': '\\"', "'": '"'}
_CONTROL: Final = re.compile(r"[\x00-\x1f]")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?(?![\w.])")
_WORD: Final = re.compile(r"[A-Za-z_]++")
_WORDS: Final[dict[str, Any]] = {"true": True, "false": False, "null": None}
_PYTHON_WORDS: Final[dict[str, Any]] = {"True": True, "False": False, "None": None}
_MAX_STRICT_FAILURES: Final = 3
"""Parts of invalid JSON that are decoded by the standard library without success, which costs as much as their length."""
_PARTIAL: Final = re.compile(r"[A-Za-z_]{1,20}|[-+.0-9eE]{1,400}")
"""The beginning of a word, of a payload's mark or of a number, where the text ends."""
_ABSENT: Final = object()
_CLOSER: Final = {"{": "}", "[": "]"}


class JsonFaultError(ValueError):
    """The text is not JSON and cannot be repaired.

    Attributes:
        reason: the fault, as part of a sentence.
        position: index of the fault in the text.
        is_open: a closing quote or mark is missing, which a longer text may have.
    """

    def __init__(self, reason: str, position: int, *, is_open: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.position = position
        self.is_open = is_open


class JsonValue(NamedTuple):
    """A value that was read.

    Attributes:
        value: the decoded value.
        end: index behind the value.
        repaired: it was not valid JSON.
        truncated: the text ended inside it.
    """

    value: Any
    end: int
    repaired: bool = False
    truncated: bool = False


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


_STRICT: Final = json.JSONDecoder(parse_constant=_refuse_constant)
_WITH_CONTROLS: Final = json.JSONDecoder(strict=False)


def read_json(finder: MarkFinder, start: int, ends: tuple[str, ...] = ()) -> JsonValue:
    """Read the JSON value that begins at ``start``.

    Args:
        finder: the text.
        start: index of the value's first character.
        ends: marks that end an incomplete value outside of strings, such as a closing tag.

    Raises:
        JsonFaultError: it is neither JSON nor repairable.
    """
    text = finder.text
    try:
        value, end = _STRICT.raw_decode(text, start)
    except (ValueError, RecursionError):
        return _Reader(finder, start, ends).read()
    check_depth(text, start, end, value, MAX_DEPTH)
    return JsonValue(value, end)


def check_depth(text: str, start: int, end: int, value: Any, depth: int) -> None:
    """Refuse ``value``, decoded from ``text[start:end]``, with more than ``depth`` objects and lists inside each other.

    Raises:
        JsonFaultError: it has more.
    """
    if text.count("{", start, end) + text.count("[", start, end) > depth and is_deeper(value, depth):
        raise JsonFaultError(f"more than {MAX_DEPTH} objects and lists are inside each other", start)


def is_deeper(value: Any, depth: int) -> bool:
    """Return whether ``value`` has more than ``depth`` objects and lists inside each other."""
    level = [value] if isinstance(value, dict | list) else []
    while level and depth:
        depth -= 1
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
    return bool(level)


class _Reader:
    """Reads one value with repairs. At the end of the text, or at one of ``ends``, all open objects and lists are closed."""

    def __init__(self, finder: MarkFinder, start: int, ends: tuple[str, ...]) -> None:
        self._finder = finder
        self._text = finder.text
        self._position = start
        self._ends = ends
        self._open: list[str] = []
        self._is_repaired = False
        self._is_truncated = False
        self._is_stopped = False
        self._strict_failures = 0
        self._has_runs = True

    def read(self) -> JsonValue:
        value = self._read_value()
        return JsonValue(value, self._position, self._is_repaired, self._is_truncated)

    def _fail(self, reason: str, position: int | None = None, *, is_open: bool = False) -> NoReturn:
        raise JsonFaultError(reason, self._position if position is None else position, is_open=is_open)

    def _skip(self) -> bool:
        """Skip blanks and comments; return whether the value ends here because the text does, or by a mark."""
        if self._is_stopped:
            return True
        text = self._text
        while True:
            self._position = position = _blank_end(text, self._position)
            if position == len(text) or (position == len(text) - 1 and text[position] == "/"):
                self._position = len(text)
                self._is_truncated = self._is_stopped = True
                return True
            if self._ends and text.startswith(self._ends, position):
                self._is_repaired = self._is_stopped = True
                return True
            plain = _PLAIN_COMMENTS.match(text, position)
            end = find_comment_end(self._finder, position, self._ends) if plain is None else plain.end()
            if end == position:
                return False
            self._is_repaired = True
            self._position = end

    def _read_value(self) -> Any:
        if self._skip():
            return _ABSENT
        text, position = self._text, self._position
        value: Any
        first = text[position]
        if first in "{[":
            if len(self._open) == MAX_DEPTH:
                self._fail(f"more than {MAX_DEPTH} objects and lists are inside each other")
            if self._open and self._strict_failures < _MAX_STRICT_FAILURES:
                try:
                    value, self._position = _STRICT.raw_decode(text, position)
                except (ValueError, RecursionError):
                    self._strict_failures += 1
                else:
                    check_depth(text, position, self._position, value, MAX_DEPTH - len(self._open))
                    return value
            self._open.append(_CLOSER[first])
            self._position += 1
            value = self._read_object() if first == "{" else self._read_list()
            self._open.pop()
            return value
        if first in "\"'":
            return self._read_string(first)
        if text.startswith(PAYLOAD_START, position):
            return self._read_payload()
        number = _NUMBER.match(text, position)
        if number is not None:
            self._position = number.end()
            try:
                return json.loads(number[0])
            except ValueError:
                self._fail("a number has too many digits", position)
        word = _WORD.match(text, position)
        if word is not None and word[0] in _WORDS:
            self._position = word.end()
            return _WORDS[word[0]]
        if word is not None and word[0] in _PYTHON_WORDS:
            self._position = word.end()
            self._is_repaired = True
            return _PYTHON_WORDS[word[0]]
        if (len(text) if word is None else word.end()) == len(text) and _PARTIAL.fullmatch(text, position):
            self._is_truncated = self._is_stopped = True
            self._position = len(text)
            return _ABSENT
        raise JsonFaultError("a JSON value is missing", position)

    def _read_object(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        has_comma = False
        while not self._is_closed(has_comma):
            if found and not has_comma:
                self._fail("',' or '}' is missing")
            run = self._read_run(_SIMPLE_MEMBERS, _QUOTED_MEMBERS, "{}")
            if run is not None:
                found.update(run)
                has_comma = True
                continue
            first = self._text[self._position]
            if first not in "\"'":
                self._fail("a name in double quotes is missing")
            key = self._read_string(first)
            if self._skip():
                break
            if self._text[self._position] != ":":
                self._fail(f"':' is missing after {key[:40]!r}")
            self._position += 1
            if self._skip():
                break
            value = self._read_value()
            if value is not _ABSENT:
                found[key] = value
            has_comma = self._skip_comma()
        return found

    def _read_list(self) -> list[Any]:
        found: list[Any] = []
        has_comma = False
        while not self._is_closed(has_comma):
            if found and not has_comma:
                self._fail("',' or ']' is missing")
            run = self._read_run(_SIMPLE_ITEMS, _QUOTED_ITEMS, "[]")
            if run is not None:
                found += run
                has_comma = True
                continue
            value = self._read_value()
            if value is not _ABSENT:
                found.append(value)
            has_comma = self._skip_comma()
        return found

    def _read_run(self, simple: re.Pattern[str], quoted: re.Pattern[str], brackets: str) -> Any:
        """Read many simple values, each with its comma, in one step; None where the next value is not simple."""
        if not self._has_runs:
            return None
        run = simple.match(self._text, self._position)
        content = "" if run is None else run[0]
        if run is None:
            run = quoted.match(self._text, self._position)
            if run is None:
                return None
            content = _ANY_QUOTE_OR_ESCAPE.sub(lambda found: _REQUOTED.get(found[0], found[0]), run[0])
            is_requoted = True
        else:
            is_requoted = False
        try:
            values = json.loads(f"{brackets[0]}{content[:-1]}{brackets[1]}")
        except ValueError:  # an invalid escape sequence: found one by one, and no run is tried again
            self._has_runs = False
            return None
        self._position = run.end()
        self._is_repaired = self._is_repaired or is_requoted
        return values

    def _is_closed(self, has_comma: bool) -> bool:
        if self._skip():
            return True
        closer = self._text[self._position]
        if closer not in "}]":
            return False
        if closer == self._open[-1]:
            self._position += 1
        elif closer not in self._open:
            self._fail(f"{self._open[-1]!r} is expected in place of {closer!r}")
        else:
            self._is_repaired = True  # the end bracket of this object or list is missing; an outer one follows
        self._is_repaired = self._is_repaired or has_comma
        return True

    def _skip_comma(self) -> bool:
        if self._skip() or self._text[self._position] != ",":
            return False
        self._position += 1
        return True

    def _read_string(self, quote: str) -> str:
        text, start = self._text, self._position
        if quote == "'":
            self._is_repaired = True
            found = _SINGLE_QUOTED.match(text, start)
            if found is None:
                return self._read_unterminated(start)
            self._position = found.end()
            return self._decode(_requote(found[1]), start)
        try:
            value, self._position = _WITH_CONTROLS.raw_decode(text, start)
        except json.JSONDecodeError as error:
            if error.msg.startswith("Unterminated") or error.pos >= len(text) - 6:
                return self._read_unterminated(start)
            self._fail(f"{_describe(error)}", error.pos)
        if _CONTROL.search(text, start, self._position):
            self._is_repaired = True
        decoded: str = value
        return decoded

    def _read_unterminated(self, start: int) -> str:
        text = self._text
        if any(self._finder.find(mark, start) < len(text) for mark in self._ends):
            self._fail("a string has no closing quote", start, is_open=True)
        self._is_truncated = self._is_stopped = True
        self._position = len(text)
        content = text[start + 1 :]
        if text[start] == "'":
            content = _requote(content)[1:-1]
        # An escape sequence at the end may be cut in two: \, \u12 and the first half of a surrogate pair.
        cut = re.search(r"\\(?:u[0-9a-fA-F]{0,3})?$", content)
        if cut is not None and (len(content) - len(content[: cut.start()].rstrip("\\")) - len(cut[0])) % 2 == 0:
            content = content[: cut.start()]
        return self._decode(f'"{content}"', start)

    def _decode(self, quoted: str, start: int) -> str:
        try:
            value: str = _WITH_CONTROLS.decode(quoted)
        except json.JSONDecodeError as error:
            self._fail(_describe(error), start)
        return value

    def _read_payload(self) -> str:
        """Raw text between two marks. The end mark counts where the JSON can go on behind it, so that it may be quoted."""
        text, finder = self._text, self._finder
        start = self._position + len(PAYLOAD_START)
        position = start
        while (end := finder.find(PAYLOAD_END, position)) < len(text):
            behind = position = end + len(PAYLOAD_END)
            behind = _blank_end(text, behind)
            if behind == len(text) or text.startswith((",", "}", "]", "//", "/*", *self._ends), behind):
                self._position = position
                return text[start:end]
        if any(finder.find(mark, start) < len(text) for mark in self._ends):
            self._fail(f"{PAYLOAD_START} has no {PAYLOAD_END}", is_open=True)
        self._is_truncated = self._is_stopped = True
        self._position = len(text)
        return text[start:]


def _blank_end(text: str, position: int) -> int:
    found = _BLANKS.match(text, position)
    return position if found is None else found.end()


def _requote(content: str) -> str:
    """Turn the content of a string in single quotes into a JSON string."""

    def replace(found: re.Match[str]) -> str:
        return {"\\'": "'", '"': '\\"'}.get(found[0], found[0])

    return f'"{_NEXT_QUOTE_OR_ESCAPE.sub(replace, content)}"'


def _describe(error: json.JSONDecodeError) -> str:
    if "escape" in error.msg:
        return r"a string has an invalid escape sequence (write '\\' for a backslash)"
    return f"a string is not valid JSON ({error.msg})"
