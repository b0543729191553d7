"""Parsing of ``key=value`` words into a tool's arguments, typed by its descriptor."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from dispatch._internal.suggestions import find_near_names, join_alternatives
from dispatch.catalog import Argument, ToolDescriptor
from dispatch.cli.exit_codes import CliError
from dispatch.messaging.wire.codec import MAX_MESSAGE_BYTES

Warn = Callable[[str], None]

_JSON_KINDS: Mapping[str, tuple[type, ...]] = {
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
}
_EXAMPLES = {"number": "2.5", "integer": "3", "boolean": "true", "object": '{"a": 1}', "array": "[1, 2]"}


def read_arguments(
    tool: ToolDescriptor, words: Iterable[str], document: str | None, warn: Warn, stdin: BinaryIO | None = None
) -> dict[str, Any]:
    """Read the arguments for ``tool``: those of ``document``, overridden by ``words``.

    Args:
        tool: declares the type of each argument. An undeclared argument is sent after a warning with similar names, because
            the service decides.
        words: ``key=value`` (typed by the descriptor; undeclared: a string) or ``key:=JSON``.
        document: a JSON object, ``@FILE``, or ``-`` for stdin.
        warn: receives warnings for the user.
        stdin: stream for ``-``; None: that of the process.

    Raises:
        CliError: the input cannot be read, is not an object, or a value does not match its declared type.
    """
    given = {} if document is None else _read_document(document, stdin)
    declared = {argument.name: argument for argument in tool.described_arguments}
    seen: set[str] = set()
    for word in words:
        key, value = _parse_word(word, declared)
        if key in seen:
            raise CliError(
                f"The argument '{key}' is given twice.", "give it once; for several values write a JSON array"
            )
        seen.add(key)
        given[key] = value
    _check_against_descriptor(tool, given, declared, warn)
    return given


def _parse_word(word: str, declared: Mapping[str, Argument]) -> tuple[str, Any]:
    key, separator, text = word.partition("=")
    if not separator or not key.rstrip(":"):
        example = f"{next(iter(declared), 'topic')}={word}" if word and not separator else "topic=cats"
        raise CliError(f"'{word}' is not key=value.", f"write {_quote(example)}, or give --arguments JSON")
    if key.endswith(":"):
        key = key[:-1]
        return key, _parse_json(text, f"The value of '{key}:='", f"write JSON, for instance {key}:='[1, 2]'")
    kind = declared[key].type if key in declared else "string"
    if kind not in _JSON_KINDS:
        return key, text
    return key, _parse_typed(key, text, kind)


def _parse_typed(key: str, text: str, kind: str) -> Any:
    stripped = text.strip()
    as_string = _quote_for_shell(json.dumps(text, ensure_ascii=False))
    fix = f"write {_quote(f'{key}={_EXAMPLES[kind]}')}; to send it as a string: {key}:={as_string}"
    problem = f"'{key}' is {'an' if kind[0] in 'aio' else 'a'} {kind}, and {stripped!r} is not one."
    try:
        value = json.loads(stripped.lower() if kind == "boolean" else stripped, parse_constant=_reject_constant)
    except (ValueError, RecursionError):
        raise CliError(problem, fix) from None
    if not isinstance(value, _JSON_KINDS[kind]) or (isinstance(value, bool) and kind != "boolean"):
        raise CliError(problem, fix)
    return value


def _read_document(document: str, stdin: BinaryIO | None) -> dict[str, Any]:
    if document == "-":
        what, text = "The input of --arguments -", _read_limited(stdin or sys.stdin.buffer, "stdin")
    elif document.startswith("@"):
        what = f"The file '{document[1:]}'"
        try:
            with Path(document[1:]).open("rb") as file:
                text = _read_limited(file, document[1:])
        except OSError as error:
            raise CliError(
                f"{what} cannot be read: {error.strerror or error}.", "give the path after the @: --arguments @FILE"
            ) from None
    else:
        what, text = "--arguments", document
    fix = """write an object of named values, for instance '{"topic": "cats"}'"""
    value = _parse_json(text, what, fix)
    if not isinstance(value, dict):
        kinds = {list: "an array", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
        raise CliError(f"{what} is {kinds.get(type(value), 'null')}, not a JSON object.", fix)
    return value


def _read_limited(file: BinaryIO, name: str) -> str:
    content = file.read(MAX_MESSAGE_BYTES + 1)
    if len(content) > MAX_MESSAGE_BYTES:
        raise CliError(
            f"{name} has more than {MAX_MESSAGE_BYTES:,} bytes, the limit of a message.",
            "send less, for instance a reference instead of the data",
        )
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise CliError(f"{name} is not UTF-8 (byte {error.start:,}).", "convert it to UTF-8") from None


def _parse_json(text: str, what: str, fix: str) -> Any:
    try:
        return json.loads(text, parse_constant=_reject_constant)
    except json.JSONDecodeError as error:
        raise CliError(f"{what} is not JSON: {error.msg} (line {error.lineno}, column {error.colno}).", fix) from None
    except (ValueError, RecursionError) as error:
        raise CliError(f"{what} is not JSON: {error}.", fix) from None


def _reject_constant(name: str) -> Any:
    raise ValueError(f"JSON has no {name}")


def _check_against_descriptor(
    tool: ToolDescriptor, given: Mapping[str, Any], declared: Mapping[str, Argument], warn: Warn
) -> None:
    if declared:  # a descriptor without arguments leaves them unspecified
        for key in given:
            if key not in declared:
                near = find_near_names(key, declared)
                hint = f"did you mean {join_alternatives(near)}?" if near else f"declared are {', '.join(declared)}."
                warn(f"'{tool.name}' declares no argument '{key}'; it is sent anyway: {hint}")
    missing = [name for name, argument in declared.items() if argument.required and name not in given]
    if missing:
        warn(f"'{tool.name}' requires {', '.join(missing)}, which is missing.")


def _quote(word: str) -> str:
    return f"'{word}'" if any(c in word for c in ' "[]{}') else word


def _quote_for_shell(text: str) -> str:
    import shlex

    return shlex.quote(text)
