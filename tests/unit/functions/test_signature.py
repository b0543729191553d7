"""Parameters of callables, and members of annotations."""

from __future__ import annotations

import functools
from typing import Annotated, Any, Optional, Union

import pytest

from dispatch.documents import Report
from dispatch.functions.schema import REQUIRED, Parameter, find_injected_type, iterate_members, read_parameters, unwrap


class Shop:
    def __call__(self, name: str) -> str:
        return name

    def find(self, name: str, /, limit: int = 3) -> None: ...


def names_of(function: Any) -> list[str]:
    report = Report("test")
    found = [parameter.name for parameter in read_parameters(function, report)]
    assert report.problems == []
    return found


def test_parameters_have_resolved_types_and_defaults() -> None:
    assert read_parameters(Shop().find, Report("test")) == (
        Parameter("name", str, REQUIRED, True),
        Parameter("limit", int, 3, False),
    )
    assert read_parameters(lambda x: x, Report("test")) == (Parameter("x", Any),)


def test_every_kind_of_callable() -> None:
    shop = Shop()
    assert names_of(shop) == ["name"]
    assert names_of(functools.partial(shop.find, "tea")) == ["limit"]
    assert names_of(functools.partial(functools.partial(shop.find), limit=3)) == ["name", "limit"]
    for function in (shop, Shop.__call__, functools.partial(shop), functools.partial(shop.__call__, "x")):
        assert unwrap(function) is Shop.__call__


@pytest.mark.parametrize(
    ("annotation", "members"),
    [
        (int, [int]),
        (None, [None]),
        (Optional[int], [int]),  # noqa: UP045 - the old form
        (int | None | str, [int, str]),
        (Annotated[Annotated[int, 1] | None, 2], [int]),
        (Union[Annotated[int, 1], list[str]], [int, list[str]]),  # noqa: UP007 - the old form
        (list[int], [list[int]]),
    ],
)
def test_members(annotation: Any, members: list[Any]) -> None:
    assert list(iterate_members(annotation)) == members


def test_the_first_provided_member_is_injected() -> None:
    assert find_injected_type(str | Shop | int, lambda type: type in (Shop, int)) is Shop
    assert find_injected_type(str | None, lambda type: type is Shop) is None
