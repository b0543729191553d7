"""Python names and keywords in the sentences of pages exist."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

import dispatch
import dispatch.testing
from tests.docs.pages import PAGES, page_id, prose

CALL = re.compile(r"^(?:dispatch\.)?(\w+)\(.*\)$")
METHOD_CALL = re.compile(r"^(?:await )?(?:dispatcher|Dispatcher)\.(?!py\b)(\w+)")
MEMBER = re.compile(r"^(?:dispatch\.)?([A-Z]\w+)\.([a-z_]\w*)")
NAME = re.compile(r"^dispatch\.([A-Z]\w+)$")


def public(name: str) -> Any:
    return getattr(dispatch, name, getattr(dispatch.testing, name, None))


def members(kind: Any) -> set[str]:
    """The attributes of a class: those of its body and its annotations, and those that its methods set."""
    source = inspect.getsource(kind)
    return {*dir(kind), *re.findall(r"self\.(\w+)", source), *re.findall(r"^    (\w+):", source, re.MULTILINE)}


def parameters(called: Any) -> set[str]:
    if inspect.isclass(called) and issubclass(called, msgspec.Struct):
        return set(called.__struct_fields__)  # the signature needs names that are imported for type checkers only
    return set(inspect.signature(called).parameters)


def unknown(code: str) -> str | None:
    """Return the mistake in a piece of inline code; None if every name is known."""
    if (found := NAME.match(code)) and public(found[1]) is None:
        return f"no {found[1]} in dispatch"
    if (found := METHOD_CALL.match(code)) and found[1] not in members(dispatch.Dispatcher):
        return f"Dispatcher has no {found[1]}"
    if (
        (found := MEMBER.match(code))
        and inspect.isclass(public(found[1]))
        and found[2] not in members(public(found[1]))
    ):
        return f"{found[1]} has no {found[2]}"
    if (found := CALL.match(code)) and callable(public(found[1])):
        own = re.sub(r"(?<=.)\([^()]*\)", "", code[code.index("(") + 1 : -1])  # without those of nested calls
        for keyword in re.findall(r"(?:^|\s)(\w+)=", own):
            if keyword not in parameters(public(found[1])):
                return f"{found[1]} has no parameter {keyword}"
    return None


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_the_names_of_a_page_exist(page: Path) -> None:
    codes = re.findall(r"`([^`\n]+)`", prose(page))
    assert [f"`{code}`: {problem}" for code in codes if (problem := unknown(code))] == []


@pytest.mark.parametrize(
    "code",
    [
        "dispatch.Kettle",
        "ToolServer(kettle=1)",
        "dispatcher.boil()",
        "ToolServer.kettle",
        "dispatch.serve(Joke(), broker, kettle=1)",
    ],
)
def test_a_name_that_does_not_exist_is_noticed(code: str) -> None:
    assert unknown(code)
