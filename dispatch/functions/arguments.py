"""The arguments of a function: their JSON Schema, and their conversion from JSON values to the types of the signature."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Union

import msgspec

from dispatch._internal.suggestions import excerpt, join_names
from dispatch._internal.user_code import read_text
from dispatch.catalog.errors import Report
from dispatch.errors import ErrorType, InvalidArgumentsError
from dispatch.functions.json_types import (
    Definitions,
    UnsupportedTypeError,
    as_json_type,
    decode_custom,
    describe_type,
    encode_custom,
)
from dispatch.functions.signature import REQUIRED, Parameter

_MODEL_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_LARGEST_EXACT: Final = 2**53
_STEP: Final = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")


class Arguments:
    """The arguments of one function.

    Attributes:
        schema: JSON Schema 2020-12 of an object with all arguments.
        unsupported: parameters whose types JSON cannot express, with these types. A call needs them injected.
    """

    def __init__(self, parameters: Sequence[Parameter], descriptions: Mapping[str, str], report: Report) -> None:
        """Read the arguments of ``parameters``, and report those that models cannot give.

        Args:
            descriptions: of parameters by name; a description in an annotation precedes.
        """
        self.unsupported: dict[str, Any] = {}
        self._definitions = Definitions()
        self._by_position = tuple(each for each in parameters if each.by_position)
        properties: dict[str, Any] = {}
        required = []
        fields: list[tuple[Any, ...]] = []
        for parameter in parameters:
            name = parameter.name
            field_type, schema = self._read(parameter, report)
            text = _find_description(parameter.annotation) or descriptions.get(name)
            if text:
                schema.setdefault("description", text)
            properties[name] = schema
            if parameter.default is REQUIRED:
                required.append(name)
                fields.append((name, field_type))
            else:
                # UNSET, so that the function itself applies its default.
                fields.append((name, Union[field_type, msgspec.UnsetType], msgspec.UNSET))  # noqa: UP007 - a variable
        self.schema: dict[str, Any] = {"type": "object", "properties": properties, "required": required}
        self.schema["additionalProperties"] = False
        if self._definitions.schemas:
            self.schema["$defs"] = self._definitions.schemas
        self._names = [name for name in properties if name not in {each.name for each in self._by_position}]
        self._known = frozenset(properties)
        self._struct = msgspec.defstruct("Arguments", fields, kw_only=True, gc=False)

    def _read(self, parameter: Parameter, report: Report) -> tuple[Any, dict[str, Any]]:
        """Return the type and the schema of a parameter."""
        name, default = parameter.name, parameter.default
        if not _MODEL_NAME.fullmatch(name):
            report.add_error(
                name,
                f"models refuse the name '{excerpt(name)}'",
                "rename the parameter: at most 64 letters A to Z, digits and '_'",
            )
        try:
            field_type = as_json_type(parameter.annotation)
            if default is None and field_type is not Any:
                field_type = Union[field_type, None]  # noqa: UP007 - a variable
            msgspec.json.Decoder(
                field_type, dec_hook=decode_custom
            )  # raises an error of types that JSON cannot be decoded to
            schema = self._definitions.write(field_type)
        except UnsupportedTypeError as error:
            self.unsupported[name] = error.type
            return Any, {}
        except Exception as error:  # of msgspec, of pydantic, or of a class of the program
            shown = describe_type(parameter.annotation)
            reason = read_text(error).partition("\n")[0]
            report.add_error(
                name,
                f"the type '{excerpt(shown)}' has no JSON Schema ({excerpt(reason, 200)})",
                "use types that JSON can express, such as str, int, list[str], a dataclass or a TypedDict",
            )
            return Any, {}
        if default is not REQUIRED:
            try:
                schema["default"] = _as_json(default)
            except (TypeError, ValueError):
                report.add_error(
                    name,
                    f"JSON cannot express the default value {excerpt(repr(default), 62)}",
                    "use None as the default and replace it inside the function, or provide its type for injection",
                )
        return field_type, schema

    def convert(self, tool: str, arguments: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return the values to pass by position, and those by name, in the types of the signature. An argument that is not
        given is not passed: the function applies its own default.

        Raises:
            InvalidArgumentsError: an argument is missing, unknown or has another type.
        """
        if not self._known.issuperset(arguments):
            raise self._error_from_unknown(tool, arguments)
        try:
            values = msgspec.convert(arguments, self._struct, str_keys=True, dec_hook=decode_custom)
        except msgspec.ValidationError:
            values = self._convert_whole_numbers(tool, arguments)
        unset = msgspec.UNSET
        named = {name: value for name in self._names if (value := getattr(values, name)) is not unset}
        return (self._list_positional(values) if self._by_position else []), named

    def _convert_whole_numbers(self, tool: str, arguments: dict[str, Any]) -> Any:
        # 1.0 is an integer in JSON Schema, and not for msgspec.
        try:
            return msgspec.convert(_as_whole_numbers(arguments), self._struct, str_keys=True, dec_hook=decode_custom)
        except msgspec.ValidationError as error:
            problem, path = _split_path(str(error))
            raise _invalid(tool, f"{path}: {problem}" if path else problem) from None

    def _list_positional(self, values: Any) -> list[Any]:
        given = [getattr(values, each.name) for each in self._by_position]
        while given and given[-1] is msgspec.UNSET:
            given.pop()
        return [
            each.default if value is msgspec.UNSET else value
            for each, value in zip(self._by_position, given, strict=False)
        ]

    def _error_from_unknown(self, tool: str, arguments: Mapping[str, Any]) -> InvalidArgumentsError:
        unknown = next(name for name in arguments if name not in self._known)
        names = tuple(self.schema["properties"])
        known = f"the arguments are {join_names(names)}" if names else "the tool has no arguments"
        return _invalid(tool, f"there is no argument '{excerpt(unknown)}', {known}")


def _invalid(tool: str, problem: str) -> InvalidArgumentsError:
    return InvalidArgumentsError(
        ErrorType.INVALID_ARGUMENTS,
        f"Tool '{tool}' was not executed: {excerpt(problem, 500)}. Correct the arguments and call it once more.",
    )


def _split_path(message: str) -> tuple[str, str]:
    """Return the problem in a message of msgspec, and the path as a JSON Pointer: ``Expected … - at `$.a[0]```."""
    problem, separator, path = message.rpartition(" - at `$")
    if not separator:
        return message, ""
    steps = (name or ("*" if index == "..." else index) for name, index in _STEP.findall(path.rstrip("`")))
    return problem, "".join(f"/{step}" for step in steps)


def _find_description(annotation: Any) -> str | None:
    """Return the text in ``Annotated[…]``: a plain text, or the ``description`` or ``documentation`` of an object in it."""
    texts: Iterator[Any] = (
        each if isinstance(each, str) else getattr(each, "description", None) or getattr(each, "documentation", None)
        for each in getattr(annotation, "__metadata__", ())
    )
    return next((text for text in texts if isinstance(text, str) and text.strip()), None)


def _as_json(value: Any) -> Any:
    """Return a default value as JSON values.

    Raises:
        TypeError, ValueError: JSON cannot express it.
    """
    result = msgspec.to_builtins(value, str_keys=True, enc_hook=encode_custom)
    if not _is_finite(result):
        raise ValueError("a number that is not finite")
    return result


def _is_finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    inner: Iterable[Any] = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return all(map(_is_finite, inner))


def _as_whole_numbers(value: Any) -> Any:
    """Return a copy of JSON values with integers in place of numbers such as 1.0."""
    if isinstance(value, dict):
        return {key: _as_whole_numbers(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_as_whole_numbers(inner) for inner in value]
    if isinstance(value, float) and value.is_integer() and abs(value) <= _LARGEST_EXACT:
        return int(value)
    return value
