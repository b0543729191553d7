"""What ``@dispatch.tool`` declares."""

from __future__ import annotations

import functools

import pytest

from dispatch.functions.schema import NO_DECLARATION, find_declaration, tool


def test_the_decorator_returns_the_function_itself() -> None:
    def add(a: int) -> int:
        return a

    assert tool(add) is add
    assert tool(read_only=True)(add) is add
    declaration = find_declaration(add)
    assert declaration is not None
    assert declaration.describe() == {"read-only": True}


def test_every_keyword_is_a_key_of_the_descriptor() -> None:
    @tool(
        name="sum",
        read_only=True,
        idempotent=True,
        destructive=False,
        permissions=["tools:math"],
        tags=("math", "fast"),
        category="math",
        version="1.2.0",
        policy={"timeout": 5},
    )
    def add() -> None: ...

    declaration = find_declaration(add)
    assert declaration is not None
    assert declaration.name == "sum"
    assert declaration.describe() == {
        "read-only": True,
        "idempotent": True,
        "destructive": False,
        "permissions": ("tools:math",),
        "tags": ("math", "fast"),
        "category": "math",
        "version": "1.2.0",
        "policy": {"timeout": 5},
    }


def test_without_the_decorator_nothing_is_declared() -> None:
    def add() -> None: ...

    assert find_declaration(add) is None
    assert NO_DECLARATION.describe() == {}


def test_an_iterator_is_read_once() -> None:
    declaration = find_declaration(tool(permissions=iter(["tools:math"]))(lambda: None))
    assert declaration is not None
    assert declaration.describe() == declaration.describe() == {"permissions": ("tools:math",)}


def test_a_single_text_is_left_for_the_reader_to_report() -> None:
    declaration = find_declaration(tool(permissions="tools:math")(lambda: None))
    assert declaration is not None
    assert declaration.describe() == {"permissions": "tools:math"}


def test_methods_and_partial_objects_can_be_declared() -> None:
    class Shop:
        @tool(read_only=True)
        def find(self, name: str) -> str:
            return name

    assert find_declaration(Shop().find) is not None
    partial = tool(name="increment")(functools.partial(pow, 2))
    assert find_declaration(partial) is not None


def test_what_cannot_be_declared_is_refused_with_the_fix() -> None:
    class Shop:
        def find(self) -> None: ...

    with pytest.raises(TypeError, match=r"inside its class if it is a method"):
        tool(Shop().find)
    with pytest.raises(TypeError, match=r"cannot be a tool\. Fix: decorate a function"):
        tool(Shop)
    with pytest.raises(TypeError, match=r"cannot be a tool"):
        tool(3)  # type: ignore[type-var]
    with pytest.raises(TypeError, match=r"readonly"):
        tool(readonly=True)(test_methods_and_partial_objects_can_be_declared)  # type: ignore[call-overload]
