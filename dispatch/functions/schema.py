"""The arguments of a function: their JSON Schema, and their conversion from JSON values to the types of the signature."""

from __future__ import annotations

import collections.abc
import contextlib
import dataclasses
import datetime
import functools
import inspect
import os
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Annotated, Any, ClassVar, Final, NamedTuple, TypeVar, Union, cast, overload

import msgspec

from dispatch._internal import NamedFields, check_instance, excerpt, read_text, type_name
from dispatch.calls.error_messages import error_from_argument_mistakes
from dispatch.catalog.items import MODEL_NAME
from dispatch.documents import Report, is_finite
from dispatch.errors import ErrorType, InvalidArgumentsError
from dispatch.messaging.wire import as_builtins, is_pydantic, pydantic_adapter
from dispatch.schemas import InvalidSchemaError, Mistake, SchemaValidator

# Types of parameters: as msgspec accepts them, their JSON Schema, and the conversion of JSON values to them.


_REF: Final = "#/$defs/"
_UNIONS: Final = (typing.Union, types.UnionType)
_WITHOUT_TYPES: Final = (typing.Literal, collections.abc.Callable)
"""Types whose parameters are no types of JSON values."""
_FORMATS: Final = {datetime.datetime: "date-time", datetime.time: "time"}
"""Formats that msgspec does not name, since it accepts times without a zone as well."""


_UNWRITABLE_DEFAULT: Final = "Encoding objects of type"
"""How an error of msgspec begins that cannot write a default value."""


class UnsupportedTypeError(TypeError):
    """JSON cannot express a type.

    Attributes:
        type: the type.
        reason: in the words of msgspec; empty: JSON has nothing like it.
    """

    def __init__(self, type: Any, reason: str = "") -> None:
        self.type = type
        self.reason = reason
        super().__init__(f"'{describe_type(type)}' is no type of JSON values")


class _AnyInstance(type):
    def __instancecheck__(cls, value: object) -> bool:
        return True  # msgspec checks what its dec_hook returns


class _Substitute(metaclass=_AnyInstance):
    """Stands for a type that msgspec does not support itself. Each subclass stands for one type."""

    write_schema: ClassVar[Callable[[Definitions], dict[str, Any]]]
    convert: ClassVar[Callable[[Any], Any]]


class Definitions:
    """The ``$defs`` of one schema.

    Attributes:
        schemas: by name.
    """

    def __init__(self) -> None:
        self.schemas: dict[str, Any] = {}

    def write(self, json_type: Any) -> dict[str, Any]:
        """Return the schema of a type of :func:`as_json_type`; the schemas that it refers to become definitions."""
        try:
            schema, components = self._write_components(json_type)
        except TypeError as error:
            if not read_text(error).startswith(_UNWRITABLE_DEFAULT):
                raise
            try:
                schema, components = self._write_components(_replace_records(json_type, {}))
            except Exception:  # of a class that contains itself, for example
                raise error from None
        tuples = [each for each in components.values() if "prefixItems" in each]
        if tuples:
            fields = {
                each.__name__: each._fields for each in _find_named_tuples(msgspec.inspect.type_info(json_type), [])
            }
            for each in tuples:  # a model cannot know the order of the fields otherwise
                for name, item in zip(fields.get(each["title"], ()), each["prefixItems"], strict=False):
                    item.setdefault("title", name)
        return self.add(schema, components)

    def _write_components(self, json_type: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        (schema,), components = msgspec.json.schema_components(
            [json_type], schema_hook=self._write_custom, ref_template=f"{_REF}{{name}}"
        )
        return schema, components

    def add(self, schema: dict[str, Any], components: Mapping[str, Any]) -> dict[str, Any]:
        """Add the definitions of ``schema``, and return it. Another definition of the same name gets another name."""
        renamed = {}
        for name, component in components.items():
            number, free = 1, name
            while free in self.schemas and self.schemas[free] != component:
                number += 1
                free = f"{name}-{number}"
            if free != name:
                renamed[f"{_REF}{name}"] = f"{_REF}{free}"
        if renamed:
            schema, components = _rename(schema, renamed), _rename(components, renamed)
        for name, component in components.items():
            self.schemas[renamed.get(f"{_REF}{name}", f"{_REF}{name}").removeprefix(_REF)] = component
        return schema

    def _write_custom(self, type: Any) -> dict[str, Any]:
        if issubclass(type, _Substitute):
            return cast(dict[str, Any], type.write_schema(self))
        if issubclass(type, PurePath):
            return {"type": "string"}
        if is_pydantic(type):
            return _write_pydantic(pydantic_adapter(type), self)
        raise UnsupportedTypeError(type)


def _replace_records(annotation: Any, made: dict[Any, Any]) -> Any:
    """Return ``annotation`` with a ``TypedDict`` in place of each dataclass and Struct in it. It has the same schema, also
    where a field has a default value that msgspec does not write, such as a path. A class that contains itself stays.

    Args:
        made: by class.
    """
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return _parametrize(annotation, Annotated, [_replace_records(args[0], made), *args[1:]])
    if args and origin not in _WITHOUT_TYPES:
        replaced = [_replace_records(each, made) for each in args]
        return _parametrize(annotation, Union if origin in _UNIONS else origin, replaced)
    is_struct = isinstance(annotation, type) and issubclass(annotation, msgspec.Struct)
    if not isinstance(annotation, type) or not (is_struct or dataclasses.is_dataclass(annotation)):
        return annotation
    if annotation in made:
        return made[annotation]
    made[annotation] = annotation
    info: Any = msgspec.inspect.type_info(annotation)
    if is_struct and (info.tag is not None or info.array_like or info.forbid_unknown_fields):
        return annotation
    hints, fields = typing.get_type_hints(annotation, include_extras=True), {}
    for field in info.fields:
        inner = _replace_records(hints[field.name], made)
        with contextlib.suppress(TypeError, ValueError):  # a value that JSON cannot express is not shown
            if field.default is not msgspec.NODEFAULT:
                inner = Annotated[inner, msgspec.Meta(extra_json_schema={"default": _as_json(field.default)})]
        fields[field.encode_name] = inner if field.required else typing.NotRequired[inner]
    record: Any = typing.TypedDict(annotation.__name__, fields)  # type: ignore[misc]  # at run time
    record.__module__, record.__qualname__ = annotation.__module__, annotation.__qualname__
    if not (annotation.__doc__ or "").startswith(f"{annotation.__name__}("):  # dataclasses writes such a text itself
        record.__doc__ = annotation.__doc__
    made[annotation] = record
    return record


def _find_named_tuples(info: Any, seen: list[Any]) -> Iterator[Any]:
    """Yield the named tuples in what msgspec knows of a type; ``seen``: its parts that were searched."""
    if isinstance(info, tuple):
        for each in info:
            yield from _find_named_tuples(each, seen)
    elif isinstance(info, msgspec.inspect.Type | msgspec.inspect.Field) and not any(each is info for each in seen):
        seen.append(info)
        if isinstance(info, msgspec.inspect.NamedTupleType):
            yield info.cls
        yield from _find_named_tuples(tuple(getattr(info, name) for name in info.__struct_fields__), seen)


def as_json_type(annotation: Any) -> Any:
    """Return ``annotation`` as a type that msgspec supports.

    - ``Iterable`` becomes a list, ``object`` any value, ``os.PathLike`` a ``Path``;
    - models of pydantic, and types with constraints of pydantic, become substitutes;
    - likewise a union that msgspec does not support: its members are tried in order.

    Raises:
        UnsupportedTypeError: JSON cannot express it.
    """
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        if any(_is_of_pydantic(each) for each in annotation.__metadata__):
            return _substitute_pydantic(annotation)
        metas = [each for each in annotation.__metadata__ if isinstance(each, msgspec.Meta)]
        inner = as_json_type(annotation.__origin__)
        return _parametrize(annotation, Annotated, [inner, *metas]) if metas else inner
    if origin in _UNIONS:
        members = [each if each is types.NoneType else as_json_type(each) for each in args]
        union = _parametrize(annotation, Union, members)
        return union if _is_supported(union) else _substitute_union(members)
    if annotation is object:
        return Any
    if os.PathLike in (annotation, origin):
        return Path
    if isinstance(annotation, type) and annotation in _FORMATS:
        return Annotated[annotation, msgspec.Meta(extra_json_schema={"format": _FORMATS[annotation]})]
    if annotation is typing.Iterable or annotation is collections.abc.Iterable:
        return list
    if origin is collections.abc.Iterable:
        return _parametrize(annotation, list, [as_json_type(args[0])])
    if is_pydantic(annotation) or ("pydantic" in sys.modules and hasattr(annotation, "__get_pydantic_core_schema__")):
        return _substitute_pydantic(annotation)
    if args and origin not in _WITHOUT_TYPES:
        inner_types = [each if each is Ellipsis else as_json_type(each) for each in args]
        return annotation if inner_types == list(args) else _parametrize(annotation, origin, inner_types)
    try:
        is_custom = isinstance(msgspec.inspect.type_info(annotation), msgspec.inspect.CustomType)
    except TypeError as error:
        raise UnsupportedTypeError(annotation, read_text(error)) from None
    if is_custom and not (isinstance(annotation, type) and issubclass(annotation, PurePath)):
        raise UnsupportedTypeError(annotation)
    return annotation


def _parametrize(annotation: Any, origin: Any, args: list[Any]) -> Any:
    try:
        return origin[tuple(args)]
    except TypeError:
        return annotation


def decode_custom(type: Any, value: Any) -> Any:
    """Convert a JSON value to a type that msgspec does not support: its ``dec_hook``.

    Raises:
        ValueError: the value does not fit.
    """
    if issubclass(type, _Substitute):
        return type.convert(value)
    if issubclass(type, PurePath):
        return type(msgspec.convert(value, str))
    if is_pydantic(type):
        return _validate(pydantic_adapter(type), value)
    raise UnsupportedTypeError(type)


def describe_type(annotation: Any) -> str:
    """Return the name of a type for messages."""
    return annotation.__qualname__ if isinstance(annotation, type) else read_text(annotation).replace("typing.", "")


def _make_substitute(write_schema: Callable[[Definitions], dict[str, Any]], convert: Callable[[Any], Any]) -> Any:
    methods = {"write_schema": staticmethod(write_schema), "convert": staticmethod(convert)}
    return _AnyInstance("Substitute", (_Substitute,), methods)


def _substitute_union(members: list[Any]) -> Any:
    def write_schema(definitions: Definitions) -> dict[str, Any]:
        return {"anyOf": [definitions.write(member) for member in members]}

    def convert(value: Any) -> Any:
        problems = []
        for member in members:
            try:
                return msgspec.convert(value, member, str_keys=True, dec_hook=decode_custom)
            except msgspec.ValidationError as error:
                problems.append(str(error))
        raise ValueError("; or ".join(dict.fromkeys(problems)))

    return _make_substitute(write_schema, convert)


def _substitute_pydantic(annotation: Any) -> Any:
    adapter = sys.modules["pydantic"].TypeAdapter(annotation)
    return _make_substitute(
        lambda definitions: _write_pydantic(adapter, definitions), lambda value: _validate(adapter, value)
    )


def _write_pydantic(adapter: Any, definitions: Definitions) -> dict[str, Any]:
    schema = adapter.json_schema(ref_template=f"{_REF}{{model}}")
    return definitions.add(schema, schema.pop("$defs", {}))


def _validate(adapter: Any, value: Any) -> Any:
    try:
        return adapter.validate_python(value)
    except ValueError as error:
        mistakes = error.errors(include_url=False)  # type: ignore[attr-defined]  # pydantic's ValidationError
        texts = ["".join(f"/{part}" for part in each["loc"]) + f" {each['msg']}" for each in mistakes]
        raise ValueError("; ".join(text.strip() for text in texts)) from None


def _is_of_pydantic(metadata: Any) -> bool:
    return "pydantic" in sys.modules and type(metadata).__module__.split(".")[0] in ("pydantic", "annotated_types")


def _is_supported(union: Any) -> bool:
    try:
        msgspec.json.Decoder(union, dec_hook=decode_custom)
    except TypeError:
        return False
    return True


def _rename(schema: Any, refs: Mapping[str, str]) -> Any:
    if isinstance(schema, Mapping):
        return {
            key: refs.get(value, value) if key == "$ref" and isinstance(value, str) else _rename(value, refs)
            for key, value in schema.items()
        }
    return [_rename(each, refs) for each in schema] if isinstance(schema, list) else schema


# The parameters of a function: annotations, defaults, and which of them are injected.


REQUIRED: Final = inspect.Parameter.empty
"""The default of a parameter that has none."""
_BY_POSITION: Final = inspect.Parameter.POSITIONAL_ONLY

_VARIADIC: Final = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


def unwrap(function: Any) -> Any:
    """Return the function below partial objects and methods, and the ``__call__`` of an object."""
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif inspect.ismethod(function):
            function = function.__func__
        elif inspect.isroutine(function) or not callable(function):
            return function
        else:
            function = type(function).__call__  # always a function here: of a class, not of an object


def find_definition(function: Any) -> Any:
    """Return the function that has the docstring and the annotations of ``function``: below decorators, partial objects,
    methods, and objects with ``__call__``, which may be decorators themselves."""
    if inspect.getattr_static(function, "__wrapped__", None) is not None:
        function = inspect.unwrap(function)
    return inspect.unwrap(unwrap(function))


def find_name(function: Any) -> str:
    """Return the name of a function below partial objects; of an object with ``__call__`` that of its class."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


def read_parameters(function: Callable[..., Any], report: Report) -> tuple[inspect.Parameter, ...]:
    """Return the parameters of ``function``, their annotations with all names resolved (``Any``: without one), and report
    those that a tool cannot have."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        report.add_error("", "its parameters cannot be read", "write a function with annotations that calls it")
        return ()
    found: list[inspect.Parameter] = []
    below = find_definition(function)
    for parameter in signature.parameters.values():
        name = parameter.name
        if parameter.kind in _VARIADIC:
            stars = _VARIADIC[parameter.kind]
            report.add_error(
                f"{stars}{name}",
                f"a model cannot know the arguments of '{stars}{name}'",
                "name each parameter, or use one parameter that is a list or a dict",
            )
            continue
        if not found and name in ("self", "cls") and parameter.annotation is REQUIRED:
            report.add_error(name, "the function is a method without its object", "give the method of an object")
            continue
        annotation = parameter.annotation
        resolved = Any if annotation is REQUIRED else _resolve(annotation, below, name, report)
        found.append(parameter.replace(annotation=resolved))
    return tuple(found)


def _resolve(annotation: Any, function: Any, name: str, report: Report) -> Any:
    holder = types.SimpleNamespace(__annotations__={name: annotation})
    names = getattr(function, "__globals__", {})
    try:
        closure = inspect.getclosurevars(function).nonlocals if inspect.isfunction(function) else {}
        resolved = typing.get_type_hints(holder, names, dict(closure), include_extras=True)[name]
        while type(resolved).__name__ == "TypeAliasType":  # of typing since Python 3.12, or of typing_extensions
            resolved = resolved.__value__
        return resolved
    except Exception as error:  # the text of an annotation is any expression
        shown = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
        report.add_error(
            name,
            f"the type '{excerpt(shown)}' cannot be resolved ({type_name(error)}: {excerpt(read_text(error))})",
            "import or define its names at the top of the module, outside of 'if TYPE_CHECKING'",
        )
        return Any


def find_injected_type(annotation: Any, is_provided: Callable[[Any], bool]) -> Any:
    """Return the provided type in an annotation; None: it has none. Of a union it is the first provided member."""
    return next((each for each in iterate_members(annotation) if is_provided(each)), None)


def iterate_members(annotation: Any) -> Iterator[Any]:
    """Yield the members of a union, or the annotation itself, without ``Annotated`` and without None."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        yield from iterate_members(annotation.__origin__)
    elif origin in (typing.Union, types.UnionType):
        for member in typing.get_args(annotation):
            yield from iterate_members(member)
    elif annotation is not types.NoneType:
        yield annotation


_LARGEST_EXACT: Final = 2**53
_STEP: Final = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")


_UNCHANGED_TYPES: Final = (str, int, float, bool)
_SCALARS: Final = frozenset((*_UNCHANGED_TYPES, types.NoneType))


class Arguments:
    """The arguments of one function.

    Attributes:
        schema: JSON Schema 2020-12 of an object with all arguments.
        unsupported: parameters whose types JSON cannot express, with their annotations and the errors. A call needs them
            injected.
    """

    def __init__(
        self, parameters: Sequence[inspect.Parameter], descriptions: Mapping[str, str], report: Report
    ) -> None:
        """Read the arguments of ``parameters``, and report those that models cannot give.

        Args:
            descriptions: of parameters by name; a description in an annotation precedes.
        """
        self.unsupported: dict[str, tuple[Any, UnsupportedTypeError]] = {}
        self._definitions = Definitions()
        self._by_position = tuple(each for each in parameters if each.kind is _BY_POSITION)
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
                fields.append((_field(name), field_type))
            else:
                # UNSET, so that the function itself applies its default.
                fields.append((_field(name), Union[field_type, msgspec.UnsetType], msgspec.UNSET))  # noqa: UP007 - a variable
        self.schema: dict[str, Any] = {"type": "object", "properties": properties, "required": required}
        self.schema["additionalProperties"] = False
        if self._definitions.schemas:
            self.schema["$defs"] = self._definitions.schemas
        self._names = [each.name for each in parameters if each not in self._by_position]
        self._required = frozenset(required)
        self._unchanged = {
            each.name: each.annotation
            for each in parameters
            if each.annotation in _UNCHANGED_TYPES and each not in self._by_position
        }
        """Types of the parameters that are passed as they are. perf: msgspec takes a microsecond to return them."""
        self._struct = msgspec.defstruct(
            "Arguments", fields, kw_only=True, gc=False, forbid_unknown_fields=True, rename=lambda field: field[1:]
        )

    def _read(self, parameter: inspect.Parameter, report: Report) -> tuple[Any, dict[str, Any]]:
        """Return the type and the schema of a parameter."""
        name, default = parameter.name, parameter.default
        if not MODEL_NAME.fullmatch(name):
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
            self.unsupported[name] = parameter.annotation, error
            return Any, {}
        except Exception as error:  # of msgspec, of pydantic, or of a class of the program
            shown = describe_type(parameter.annotation)
            reason = read_text(error).partition("\n")[0]
            fix = "use types that JSON can express, such as str, int, list[str], a dataclass or a TypedDict"
            if reason.startswith(_UNWRITABLE_DEFAULT):
                fix = "give the field with a default value of this type a default_factory in its place"
            report.add_error(name, f"the type '{excerpt(shown)}' has no JSON Schema ({excerpt(reason, 200)})", fix)
            return Any, {}
        if default is not REQUIRED:
            try:
                schema["default"] = _as_json(default)
            except (TypeError, ValueError):
                fix = "use None as the default and replace it inside the function, or provide its type for injection"
                if type(default).__name__ == "FieldInfo":  # of pydantic
                    fix = f"write {name}: Annotated[TYPE, Field(…)], and the default itself behind '='"
                report.add_error(name, f"JSON cannot express the default value {excerpt(read_text(default), 62)}", fix)
        return field_type, schema

    def convert(self, tool: str, arguments: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return the values to pass by position, and those by name, in the types of the signature. An argument that is not
        given is not passed: the function applies its own default.

        Raises:
            InvalidArgumentsError: an argument is missing, unknown or has another type.
        """
        unchanged = self._unchanged
        for name, value in arguments.items():
            if unchanged.get(name) is not type(value):
                break
        else:
            if self._required.issubset(arguments):
                return [], dict(arguments)
        try:
            values = msgspec.convert(arguments, self._struct, str_keys=True, dec_hook=decode_custom)
        except msgspec.ValidationError:
            values = self._convert_whole_numbers(tool, arguments)
        if self._definitions.schemas:  # a class
            _set_defaults(values)
        unset = msgspec.UNSET
        named = {name: value for name in self._names if (value := getattr(values, _field(name))) is not unset}
        return (self._list_positional(values) if self._by_position else []), named

    def _convert_whole_numbers(self, tool: str, arguments: dict[str, Any]) -> Any:
        # 1.0 is an integer in JSON Schema, and not for msgspec.
        try:
            return msgspec.convert(_as_whole_numbers(arguments), self._struct, str_keys=True, dec_hook=decode_custom)
        except msgspec.ValidationError as error:
            problem, path = _split_path(str(error))
            raise self._refuse(tool, arguments, f"{path}: {problem}" if path else problem) from None

    def _list_positional(self, values: Any) -> list[Any]:
        given = [getattr(values, _field(each.name)) for each in self._by_position]
        while given and given[-1] is msgspec.UNSET:
            given.pop()
        return [
            each.default if value is msgspec.UNSET else value
            for each, value in zip(self._by_position, given, strict=False)
        ]

    def _refuse(self, tool: str, arguments: dict[str, Any], problem: str) -> InvalidArgumentsError:
        """Return the error of arguments that do not match the signature, in the words of a dispatcher that checks them by
        the schema; ``problem`` is for what the schema does not say, such as a check of a class of pydantic."""
        mistakes: tuple[Mistake, ...] = ()
        with contextlib.suppress(InvalidSchemaError):
            mistakes = SchemaValidator(self.schema).find_mistakes(arguments)
        if mistakes:
            return error_from_argument_mistakes(tool, mistakes)
        return InvalidArgumentsError(
            ErrorType.INVALID_ARGUMENTS,
            f"Tool '{tool}' was not executed: {excerpt(problem, 500)}. Correct the arguments.",
        )


def _set_defaults(value: Any) -> None:
    """Set the fields of dataclasses in ``value`` that msgspec has left to the defaults of their classes: ``vars()`` and
    other readers of ``__dict__`` would miss them."""
    waiting, seen = [value], set[int]()
    while waiting:
        each = waiting.pop()
        kind = type(each)
        if kind in _SCALARS or id(each) in seen:
            continue
        seen.add(id(each))  # __post_init__ of a class may have made a circle
        if isinstance(each, list | tuple | set | frozenset):
            waiting += each
        elif isinstance(each, dict):
            waiting += each.values()
        elif dataclasses.is_dataclass(kind):
            fields, own = dataclasses.fields(kind), getattr(each, "__dict__", {})
            for field in fields:
                if field.default is not dataclasses.MISSING:
                    own.setdefault(field.name, field.default)
            waiting += (getattr(each, field.name, None) for field in fields)
        else:
            waiting += (getattr(each, name) for name in getattr(kind, "__struct_fields__", ()))


def _field(name: str) -> str:
    """Return the attribute of the argument ``name``: Python changes names such as ``__x`` in classes."""
    return f"a{name}"


def _split_path(message: str) -> tuple[str, str]:
    """Return the problem in a message of msgspec, and the path as a JSON Pointer: ``Expected … - at `$.a[0]```, or of a key
    ``Expected … - at `key` in `$.a```."""
    problem, separator, path = message.rpartition(" - at `")
    if not separator:
        return message, ""
    if path.startswith("key`"):
        problem, path = f"a key: {problem}", path.removeprefix("key` in `")
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
    result = as_builtins(value)
    if not is_finite(result):
        raise ValueError("a number that is not finite")
    return result


def _as_whole_numbers(value: Any) -> Any:
    """Return a copy of JSON values with integers in place of numbers such as 1.0."""
    if isinstance(value, dict):
        return {key: _as_whole_numbers(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_as_whole_numbers(inner) for inner in value]
    if isinstance(value, float) and value.is_integer() and abs(value) <= _LARGEST_EXACT:
        return int(value)
    return value


# Descriptions in docstrings: of a function, and of its parameters.


_SEPARATOR: Final = re.compile(r"\s*,\s*")


class Docstring(NamedTuple):
    """The texts for models in a docstring.

    Attributes:
        description: of the function.
        parameters: descriptions of parameters by name.
    """

    description: str
    parameters: Mapping[str, str]


def read_docstring(text: str | None) -> Docstring:
    """Read a docstring in the style of Google, NumPy, Sphinx or Epydoc.

    Without docstring-parser (the extra ``functions``), or if the docstring has none of these styles, all of its text is the
    description: models find the parameters in it as well.
    """
    if not text or not text.strip():
        return Docstring("", {})
    whole = inspect.cleandoc(text)
    try:
        from docstring_parser import ParseError, parse
    except ImportError:
        return Docstring(whole, {})
    try:
        parsed = parse(whole)
    except ParseError:
        return Docstring(whole, {})
    parts = [part for part in (parsed.short_description, parsed.long_description) if part]
    parameters = {
        name.lstrip("*"): " ".join(param.description.split())
        for param in parsed.params
        if param.description
        for name in _SEPARATOR.split(param.arg_name)
    }
    return Docstring("\n\n".join(parts), parameters)


# The decorator ``@dispatch.tool``: what a function declares as a tool.


F = TypeVar("F", bound=Callable[..., Any])

_ATTRIBUTE: Final = "__dispatch_tool__"


class Declaration(msgspec.Struct, metaclass=NamedFields, frozen=True, rename="kebab"):
    """What a function declares as a tool; see :func:`tool`. The values are checked when a source delivers the tool."""

    name: str | None = None
    read_only: bool = False
    idempotent: bool = False
    destructive: bool | None = None
    permissions: str | tuple[str, ...] = ()
    tags: str | tuple[str, ...] = ()
    category: str | None = None
    version: str | None = None
    policy: Mapping[str, Any] | None = None

    def describe(self) -> dict[str, Any]:
        """Return the declared keys of the tool's descriptor, besides its name."""
        keys = ((each, getattr(self, each.name)) for each in msgspec.structs.fields(self)[1:])
        return {each.encode_name: value for each, value in keys if value != each.default}


NO_DECLARATION: Final = Declaration()


@overload
def tool(function: F, /) -> F: ...


@overload
def tool(
    *,
    name: str | None = None,
    read_only: bool = False,
    idempotent: bool = False,
    destructive: bool | None = None,
    permissions: Iterable[str] = (),
    tags: Iterable[str] = (),
    category: str | None = None,
    version: str | None = None,
    policy: Mapping[str, Any] | None = None,
) -> Callable[[F], F]: ...


def tool(function: Any = None, /, **declared: Any) -> Any:
    """Declare a function as a tool: ``@dispatch.tool(read_only=True)``. The function itself is returned unchanged.

    Its docstring is the description for models, its signature the schema of the arguments. A function without the decorator
    is a tool as well, with the defaults.

    Args:
        function: the function, of ``@dispatch.tool`` without parentheses.
        name: name for models; None: the name of the function.
        read_only, idempotent, destructive, permissions, tags, category, version: as in a tool's descriptor
            (:class:`dispatch.catalog.ToolDescriptor`).
        policy: policy keys as in a descriptor, for example ``{"timeout": 5, "bulkhead": 4}``.

    Raises:
        TypeError: an unknown keyword, a policy that is no dict, or an object that cannot be declared.
    """
    check_instance("policy", declared.get("policy"), (Mapping, types.NoneType), "a dict such as {'timeout': 5}")
    for key in ("permissions", "tags"):
        texts = declared.get(key) or ()
        # A single text stays as it is: the reader of descriptors reports it, instead of its letters.
        declared[key] = texts if isinstance(texts, str) else tuple(texts)
    declaration = Declaration(**declared)
    if function is None:
        return lambda decorated: _declare(decorated, declaration)
    return _declare(function, declaration)


def _declare(function: Any, declaration: Declaration) -> Any:
    if isinstance(function, staticmethod | classmethod):
        _declare(function.__func__, declaration)  # what its class gives is not this object
        return function
    if isinstance(function, str):
        raise TypeError(f"a text cannot be a tool. Fix: write @dispatch.tool(name={excerpt(function)!r}).")
    if not callable(function) or isinstance(function, type):
        raise TypeError(f"{function!r:.80} cannot be a tool. Fix: decorate a function, or an object with __call__.")
    try:
        setattr(function, _ATTRIBUTE, declaration)
    except AttributeError:
        raise TypeError(
            f"{function!r:.80} cannot be declared as a tool. Fix: decorate the function itself, inside its class if it is a "
            "method; or write a function that calls it."
        ) from None
    return function


def find_declaration(function: object) -> Declaration | None:
    """Return what ``function`` declares, or the one below a partial object or decorator; None: it is not decorated."""
    declaration = getattr(function, _ATTRIBUTE, None)
    below = function.func if isinstance(function, functools.partial) else getattr(function, "__wrapped__", None)
    if declaration is None and below is not None:
        return find_declaration(below)
    return declaration if isinstance(declaration, Declaration) else None


def is_declared(value: object) -> bool:
    """Return whether ``value`` is decorated, without computing any attribute of it."""
    return not issubclass(type(value), type) and isinstance(
        inspect.getattr_static(value, _ATTRIBUTE, None), Declaration
    )
