"""Types of parameters: as msgspec accepts them, their JSON Schema, and the conversion of JSON values to them."""

from __future__ import annotations

import collections.abc
import functools
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Final, Union, cast

import msgspec

_REF: Final = "#/$defs/"
_UNIONS: Final = (typing.Union, types.UnionType)
_WITHOUT_TYPES: Final = (typing.Literal, collections.abc.Callable)
"""Types whose parameters are no types of JSON values."""


class UnsupportedTypeError(TypeError):
    """JSON cannot express a type.

    Attributes:
        type: the type.
    """

    def __init__(self, type: Any) -> None:
        self.type = type
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
        (schema,), components = msgspec.json.schema_components(
            [json_type], schema_hook=self._write_custom, ref_template=f"{_REF}{{name}}"
        )
        return self.add(schema, components)

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
        if _is_pydantic(type):
            return _write_pydantic(_adapter_of_class(type), self)
        raise UnsupportedTypeError(type)


def as_json_type(annotation: Any) -> Any:
    """Return ``annotation`` as a type that msgspec supports.

    - ``Iterable`` becomes a list, ``object`` any value;
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
    if annotation is typing.Iterable or annotation is collections.abc.Iterable:
        return list
    if origin is collections.abc.Iterable:
        return _parametrize(annotation, list, [as_json_type(args[0])])
    if _is_pydantic(annotation):
        return _substitute_pydantic(annotation)
    if args and origin not in _WITHOUT_TYPES:
        inner_types = [each if each is Ellipsis else as_json_type(each) for each in args]
        return annotation if inner_types == list(args) else _parametrize(annotation, origin, inner_types)
    if _is_custom(annotation):
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
    if _is_pydantic(type):
        return _validate(_adapter_of_class(type), value)
    raise UnsupportedTypeError(type)


def encode_custom(value: Any) -> Any:
    """Return a model of pydantic as JSON values: msgspec's ``enc_hook``.

    Raises:
        TypeError: any other value.
    """
    if _is_pydantic(type(value)):
        return _adapter_of_class(cast(Any, type(value))).dump_python(value, mode="json")
    raise TypeError(f"JSON cannot express a {type(value).__name__}")


def describe_type(annotation: Any) -> str:
    """Return the name of a type for messages."""
    return annotation.__qualname__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")


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
    adapter = _adapter_of(annotation)
    return _make_substitute(
        lambda definitions: _write_pydantic(adapter, definitions), lambda value: _validate(adapter, value)
    )


def _adapter_of(annotation: Any) -> Any:
    return sys.modules["pydantic"].TypeAdapter(annotation)


@functools.lru_cache(256)
def _adapter_of_class(model: Any) -> Any:
    return _adapter_of(model)


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


def _is_pydantic(annotation: Any) -> bool:
    # A class of pydantic implies that the program has imported pydantic, which dispatch does not need.
    return "pydantic" in sys.modules and isinstance(annotation, type) and hasattr(annotation, "__pydantic_validator__")


def _is_of_pydantic(metadata: Any) -> bool:
    return "pydantic" in sys.modules and type(metadata).__module__.split(".")[0] in ("pydantic", "annotated_types")


def _is_custom(annotation: Any) -> bool:
    try:
        return isinstance(msgspec.inspect.type_info(annotation), msgspec.inspect.CustomType)
    except TypeError:
        return True


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
