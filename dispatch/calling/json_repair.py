"""Read JSON as models write it: repaired where it is not valid, in linear time."""

from __future__ import annotations

import json
import re
from operator import itemgetter
from typing import Any, Final, NamedTuple, NoReturn

from dispatch._internal import is_deeper, quote_excerpt

# Searches in one text whose cost stays linear over any number of searches.


class MarkFinder:
    """``str.find`` in one text that remembers its last result for each mark, so that repeated searches stay linear."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._last: dict[str, tuple[int, int]] = {}

    def find(self, mark: str, start: int) -> int:
        """Return the index of the first ``mark`` at or behind ``start``; the length of the text without one."""
        since, found = self._last.get(mark, (0, -1))
        if not since <= start <= found:
            found = self.text.find(mark, start)
            found = len(self.text) if found < 0 else found
            self._last[mark] = (start, found)
        return found


def find_comment_end(finder: MarkFinder, position: int, ends: tuple[str, ...]) -> int:
    """Return the index behind the comment at ``position``, or ``position`` without one. Marks of ``ends`` end comments."""
    text = finder.text
    if text.startswith("/*", position):
        return min(finder.find("*/", position + 2) + 2, len(text))
    if not text.startswith(("//", "#"), position):
        return position
    return min(finder.find(mark, position) for mark in ("\n", *ends))


# A fault of JSON that cannot be repaired, in words for a model.


MAX_DEPTH: Final = 64
"""Objects and lists inside each other, in one call. Tools rarely go beyond 10; CPython's JSON decoder fails near 1,000."""
VALUE_MISSING: Final = "a JSON value is missing"
TOO_DEEP: Final = f"more than {MAX_DEPTH} objects and lists are inside each other"


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


def describe_error(error: json.JSONDecodeError) -> str:
    if "escape" in error.msg:
        return r"a string has an invalid escape sequence (write '\\' for a backslash)"
    if "':'" in error.msg:
        end = len(error.doc[: error.pos].rstrip())
        start = find_string(error.doc, end)
        return f"':' is missing after {quote_excerpt(json.loads(error.doc[start:end], strict=False), 40)}"
    if "','" in error.msg:
        return "',' or an end bracket is missing"
    return "a name in double quotes is missing" if "property name" in error.msg else VALUE_MISSING


def is_escape(text: str, position: int) -> bool:
    """Return whether the backslash at ``position`` begins an escape sequence, and is not escaped itself."""
    start = position
    while text[start - 1] == "\\":
        start -= 1
    return (position - start) % 2 == 0


def find_string(text: str, end: int) -> int:
    """Return the index of the JSON string that ends at ``end``; -1 without one."""
    if not text.endswith('"', 0, end):
        return -1
    start = text.rfind('"', 0, end - 1)
    while start > 0 and text[start - 1] == "\\" and not is_escape(text, start):
        start = text.rfind('"', 0, start)
    return start


# Translation of what models write in place of JSON into JSON: one pass with one regular expression, in linear time.
#
# The standard library decodes the translation and finds the faults of syntax. Data inside strings is never changed.


PAYLOAD_START: Final = "__PAYLOAD_START__"
PAYLOAD_END: Final = "__PAYLOAD_END__"
_MAX_MISSING: Final = 64
"""End brackets that are added inside one value: each costs as much time as ten characters."""

_MAX_EDITS: Final = 10_000
"""Parts of one value that are replaced; neighbouring strings in single quotes, and neighbouring comments, are one part."""

_ODD_BLANKS: Final = "\ufeff\u00a0\u200b\u3000"
_SCALAR: Final = (
    r"-?(?:0|[1-9][0-9]{0,300}+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?(?![\w.])|(?:true|false|null)(?![A-Za-z_])"
)
_QUOTED: Final = r"'(?:[^'\\]++|\\.)*+'"
# perf: what stays as it is is a part of the next token's match, so that only the other tokens cost a step in Python.
_TOKEN: Final = re.compile(
    rf'(?:[ \t\r\n,:]++|"(?:[^"\\\x00-\x1f]++|\\[^\x00-\x1f])*+"|{_SCALAR})*+'
    rf"(?:(?P<opener>[{{\[])|(?P<closer>[}}\]])"
    rf"|(?P<quoted>{_QUOTED}(?:[ \t\r\n,:]*+(?:{_QUOTED}|{_SCALAR}))*+)"
    r'|(?P<string>"(?:[^"\\]++|\\.)*+")'
    r"|(?P<word>(?:True|False|None)(?![A-Za-z_]))"
    r"|(?P<lines>(?:(?://|\#)[^\n]*+\n[ \t\r\n]*+)++)"
    r"|(?P<blocks>(?:/\*(?:[^*]++|\*(?!/))*+\*/[ \t\r\n]*+)++)"
    rf"|(?P<blanks>[{_ODD_BLANKS}][{_ODD_BLANKS} \t\r\n]*+)"
    r"|(?P<number>-?[1-9][0-9]{301,}+(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?(?![\w.]))"
    r"|(?P<other>.)|\Z)",
    re.DOTALL,
)
_GROUPS: Final = _TOKEN.groupindex
_OPENER, _CLOSER, _QUOTED_RUN, _STRING = (_GROUPS[name] for name in ("opener", "closer", "quoted", "string"))
_WORD, _LINES, _BLOCKS = (_GROUPS[name] for name in ("word", "lines", "blocks"))
_WIDE_BLANKS, _LONG_NUMBER = _GROUPS["blanks"], _GROUPS["number"]

_BLANKS: Final = re.compile(rf"[ \t\r\n{_ODD_BLANKS}]*+")
_QUOTED_OR_REST: Final = re.compile(rf"{_QUOTED}|'.*+|[^']++", re.DOTALL)
_QUOTE_OR_ESCAPE: Final = re.compile(r"\\.|[\"']", re.DOTALL)
_REQUOTED: Final = {"\\'": "'", '"': '\\"', "'": '"'}
_PYTHON_WORDS: Final = {"True": "true", "False": "false", "None": "null"}
_CUT_ESCAPE: Final = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?\Z")
_PARTIAL: Final = re.compile(r"[A-Za-z_]{1,20}|[-+.0-9eE]{1,400}")
"""The beginning of a word, of a payload's mark or of a number, where the text ends."""
_CLOSER_OF: Final = {"{": "}", "[": "]"}
_NO_JSON: Final = "\x01"
_ALL_BLANKS: Final = f" \t\r\n{_ODD_BLANKS}"
_BEFORE_CLOSER: Final = f",/{_ALL_BLANKS}"
_BLANK_EDITS: Final = f"/#{_ODD_BLANKS}"
"""First characters of the parts that are replaced by a blank."""


_DECODER: Final = json.JSONDecoder(strict=False)


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


class Translation:
    """Translates one value into JSON. The end of the text, and one of ``ends``, close all open objects and lists.

    Args:
        finder: the text.
        start: index of the value's first character.
        ends: marks that end an incomplete value outside of strings, such as a closing tag.
    """

    def __init__(self, finder: MarkFinder, start: int, ends: tuple[str, ...]) -> None:
        self._finder = finder
        self._text = finder.text
        self._start = start
        self._ends = ends
        self._end_marks = re.compile("|".join(map(re.escape, ends))) if ends else None
        self._edits: list[tuple[int, int, str]] = []
        self._closers: list[str] = []
        self._missing = 0
        self._fault: JsonFaultError | None = None
        self._is_repaired = False
        self._is_truncated = False
        self._is_over = False
        self._has_partial = False

    def decode(self) -> JsonValue:
        """Return the value.

        Raises:
            JsonFaultError: the first fault of the text.
        """
        self._start = position = self._skip_comments()
        if not self._text.startswith(("{", "["), position):
            raise JsonFaultError(VALUE_MISSING, position)
        while not self._is_over:
            position = self._translate(position)
        translated = self._build(position)
        if self._fault is not None or self._has_partial:
            self._check_syntax(translated, self._fault)
        try:
            value = _DECODER.raw_decode(self._close(translated))[0]
        except json.JSONDecodeError as error:
            if error.pos < len(translated.rstrip()):
                raise self._convert_error(error) from None
            try:  # the last name of an object has no value: it is dropped
                value = _DECODER.raw_decode(self._close(_drop_name(translated)))[0]
            except json.JSONDecodeError:
                raise self._convert_error(error) from None
        return JsonValue(value, position, self._is_repaired, self._is_truncated)

    # Translation

    def _translate(self, position: int) -> int:
        """Note the changes from ``position`` on; return the index of the end, or of the next token to translate."""
        text, edits, closers = self._text, self._edits, self._closers
        for found in _TOKEN.finditer(text, position):
            kind, end = found.lastindex, found.end()
            if len(edits) > _MAX_EDITS:
                return self._stop_by_fault(f"more than {_MAX_EDITS:,} parts of it are not valid JSON", found.start())
            if kind == _OPENER:
                if len(closers) == MAX_DEPTH:
                    return self._stop_by_fault(TOO_DEEP, end - 1)
                closers.append(_CLOSER_OF[text[end - 1]])
            elif kind == _CLOSER:
                if text[end - 2] in _BEFORE_CLOSER and not self._drop_comma(end - 1):
                    return end - 1
                if closers[-1] == text[end - 1]:
                    closers.pop()
                elif not self._add_closers(end - 1):
                    return end - 1
                if not closers:
                    self._is_over = True
                    return end
            elif kind == _QUOTED_RUN:
                self._replace(found.start(kind), end, _requote(found[kind]))
            elif kind == _STRING:  # it has control characters, which the decoder of translations accepts
                self._is_repaired = True
            elif kind == _WORD:
                self._replace(found.start(kind), end, _PYTHON_WORDS[found[kind]])
            elif kind == _BLOCKS:
                self._replace(found.start(kind), end, " ")
            elif kind == _LINES:
                mark = self._end_marks.search(text, found.start(kind), end) if self._end_marks else None
                self._replace(found.start(kind), end if mark is None else mark.start(), " ")
                if mark is not None:
                    return mark.start()
            elif kind == _WIDE_BLANKS:
                edits.append((found.start(kind), end, " "))
            elif kind == _LONG_NUMBER:
                try:
                    json.loads(found[kind])
                except ValueError:
                    return self._stop_by_fault("a number has too many digits", found.start(kind))
            elif kind is None:
                break
            else:
                return self._read_other(end - 1)
        return self._stop_at_end()

    def _replace(self, start: int, end: int, replacement: str) -> None:
        self._edits.append((start, end, replacement))
        self._is_repaired = True

    def _stop_at_end(self) -> int:
        self._is_truncated = self._is_over = True
        return len(self._text)

    def _stop_by_fault(self, reason: str, position: int, *, is_open: bool = False) -> int:
        self._fault = JsonFaultError(reason, position, is_open=is_open)
        self._is_over = True
        return position

    def _skip_comments(self) -> int:
        position = self._start
        while True:
            start = _skip_blanks(self._text, position)
            position = find_comment_end(self._finder, start, self._ends)
            if position == start:
                return start
            self._is_repaired = True

    def _drop_comma(self, closer: int) -> bool:
        """Drop a comma before an end bracket; return false for a fault: there is no value in front of it."""
        index = len(self._edits) - 1
        comma, index = self._skip_back(closer, index)
        if self._text[comma - 1] == ",":
            before, _ = self._skip_back(comma - 1, index)
            if self._text[before - 1] in "{[,:":
                self._stop_by_fault(VALUE_MISSING, comma - 1)
                return False
            self._replace(comma - 1, comma, " ")
        return True

    def _skip_back(self, position: int, index: int) -> tuple[int, int]:
        """Return the index behind the last character before ``position`` that is in no blank and no comment.

        ``index`` is that of the last edit before ``position``; the second result is that of the last one before the first.
        """
        text, edits = self._text, self._edits
        while True:
            while text[position - 1] in _ALL_BLANKS:
                position -= 1
            if index < 0 or edits[index][1] < position or text[edits[index][0]] not in _BLANK_EDITS:
                return position, index
            position = min(position, edits[index][0])
            index -= 1

    def _add_closers(self, position: int) -> bool:
        """Add the end brackets that are missing in front of the one at ``position``; return false for a fault."""
        closers, closer = self._closers, self._text[position]
        self._missing += 1
        if closer not in closers or self._missing > _MAX_MISSING:
            self._stop_by_fault(f"{closers[-1]!r} is expected in place of {closer!r}", position)
            return False
        added = []
        while (last := closers.pop()) != closer:
            added.append(last)
        self._replace(position, position, "".join(added))
        return True

    def _read_other(self, position: int) -> int:
        """Read what needs a search: an end mark, a comment that it ends, a payload, a string or word that is cut off."""
        text = self._text
        if text.startswith(self._ends, position):
            self._is_repaired = self._is_over = True
            return position
        end = find_comment_end(self._finder, position, self._ends)
        if end > position:
            self._replace(position, end, " ")
            return end
        if text.startswith(PAYLOAD_START, position):
            return self._read_payload(position)
        if text[position] in "\"'":
            return self._read_unterminated(position)
        if (text.endswith("/") and position == len(text) - 1) or _PARTIAL.fullmatch(text, position):
            self._edits.append((position, len(text), ""))
            self._has_partial = text[position] != "/"
            return self._stop_at_end()
        is_mark_begun = any(mark.startswith(text[position:]) for mark in self._ends)
        return self._stop_by_fault(VALUE_MISSING, position, is_open=is_mark_begun)

    def _read_payload(self, position: int) -> int:
        """Raw text between two marks. The end mark counts where the JSON can go on behind it, so that it may be quoted."""
        text, finder = self._text, self._finder
        start = end = position + len(PAYLOAD_START)
        while (found := finder.find(PAYLOAD_END, end)) < len(text):
            end = found + len(PAYLOAD_END)
            behind = _skip_blanks(text, end)
            if behind == len(text) or text.startswith((",", "}", "]", "//", "/*", *self._ends), behind):
                self._edits.append((position, end, json.dumps(text[start:found], ensure_ascii=False)))
                return end
        self._edits.append((position, len(text), json.dumps(text[start:], ensure_ascii=False)))
        return self._stop_unterminated(f"{PAYLOAD_START} has no {PAYLOAD_END}", position)

    def _read_unterminated(self, position: int) -> int:
        text = self._text
        # An escape sequence at the end may be cut in two.
        cut = _CUT_ESCAPE.search(text, position)
        end = len(text) if cut is None or not is_escape(text, cut.start()) else cut.start()
        if text[position] == "'":
            self._replace(position, len(text), _requote(text[position:end]) + '"')
        else:
            self._edits.append((end, len(text), '"'))
        return self._stop_unterminated("a string has no closing quote", position)

    def _stop_unterminated(self, reason: str, position: int) -> int:
        if any(self._finder.find(mark, position) < len(self._text) for mark in self._ends):
            self._stop_by_fault(reason, position, is_open=True)
            return len(self._text)
        return self._stop_at_end()

    # Decoding

    def _build(self, end: int) -> str:
        self._edits.sort(key=itemgetter(0))  # a trailing comma is noted behind the comments that follow it
        pieces: list[str] = []
        copied = self._start
        for start, behind, replacement in self._edits:
            pieces += (self._text[copied:start], replacement)
            copied = behind
        return "".join([*pieces, self._text[copied:end]])

    def _close(self, translated: str) -> str:
        """Return ``translated`` without a comma at its end, and with all end brackets."""
        content = translated.rstrip()
        if content.endswith(",") and not content[:-1].rstrip().endswith(("{", "[")):
            content = content[:-1]
        return content + "".join(reversed(self._closers))

    def _check_syntax(self, translated: str, fault: JsonFaultError | None) -> None:
        """Raise the fault of syntax in front of the end of ``translated``, or ``fault`` without one.

        Without ``fault``, a value that is cut off is at the end: anything else is a fault there.
        """
        try:
            _DECODER.raw_decode(translated + _NO_JSON)
        except json.JSONDecodeError as error:
            is_inside = error.pos < len(translated)
            if is_inside or (
                describe_error(error) != VALUE_MISSING if fault is None else fault.reason == VALUE_MISSING
            ):
                found = self._convert_error(error)
                # What is at the end may be the beginning of an end mark.
                found.is_open = self._has_partial or (fault is not None and fault.is_open)
                raise found from None
        if fault is not None:
            raise fault

    def _convert_error(self, error: json.JSONDecodeError) -> JsonFaultError:
        if "':'" in error.msg:  # behind the name, whatever follows: a comma there may be dropped
            return JsonFaultError(describe_error(error), self._locate(len(error.doc[: error.pos].rstrip()) - 1) + 1)
        return JsonFaultError(describe_error(error), self._locate(error.pos))

    def _locate(self, position: int) -> int:
        """Return the index in the text of an index in the translation."""
        shift = self._start
        for start, end, replacement in self._edits:
            inside = position + shift - start
            if inside < 0:
                break
            if inside < max(len(replacement), 1):
                return start + (_locate_quoted(self._text[start:end], inside) if self._text[start] == "'" else 0)
            shift += end - start - len(replacement)
        return min(position + shift, len(self._text))


def _skip_blanks(text: str, position: int) -> int:
    found = _BLANKS.match(text, position)
    return position if found is None else found.end()


def _requote(quoted: str) -> str:
    """Turn strings in single quotes, and what is between them, into JSON."""
    if "\\" in quoted:
        return _QUOTE_OR_ESCAPE.sub(lambda found: _REQUOTED.get(found[0], found[0]), quoted)
    return quoted.replace('"', '\\"').replace("'", '"')


def _locate_quoted(quoted: str, position: int) -> int:
    """Return the index in ``quoted`` of an index in its translation; inside of a string it is the string's start."""
    for piece in _QUOTED_OR_REST.finditer(quoted):
        size = len(_requote(piece[0]))
        if position < size:
            return piece.start() + (0 if piece[0].startswith("'") else position)
        position -= size
    return 0


def _drop_name(translated: str) -> str:
    content = translated.rstrip().removesuffix(":").rstrip()
    start = find_string(content, len(content))
    return translated if start < 0 else content[:start]


# JSON as models write it: valid JSON unchanged, and a few repairs of invalid JSON, in linear time.
#
# Valid JSON is decoded by the standard library and never repaired.


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


_STRICT: Final = json.JSONDecoder(parse_constant=_refuse_constant)


def read_json(finder: MarkFinder, start: int, ends: tuple[str, ...] = ()) -> JsonValue:
    """Read the JSON value that begins at ``start``. With repairs it must be an object or a list.

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
        return Translation(finder, start, ends).decode()
    if text.count("{", start, end) + text.count("[", start, end) > MAX_DEPTH and is_deeper(value, MAX_DEPTH):
        raise JsonFaultError(TOO_DEEP, start)
    return JsonValue(value, end)
