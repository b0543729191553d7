"""Docstrings in three styles, and without docstring-parser."""

from __future__ import annotations

import sys

import pytest

from dispatch.functions.schema import read_docstring

GOOGLE = """Add two numbers.

    The result is exact.

    Args:
        a: The first number,
            a whole one.
        b (int): The second number.

    Returns:
        Their sum.
"""
NUMPY = """Add two numbers.

    The result is exact.

    Parameters
    ----------
    a : int
        The first number,
        a whole one.
    b, c : int
        The second number.

    Returns
    -------
    int
        Their sum.
"""
SPHINX = """Add two numbers.

    The result is exact.

    :param a: The first number,
        a whole one.
    :param int b: The second number.
    :returns: Their sum.
"""


@pytest.mark.parametrize("text", [GOOGLE, NUMPY, SPHINX], ids=["google", "numpy", "sphinx"])
def test_description_and_parameters_of_each_style(text: str) -> None:
    found = read_docstring(text)
    assert found.description == "Add two numbers.\n\nThe result is exact."
    assert found.parameters["a"] == "The first number, a whole one."
    assert found.parameters["b"] == "The second number."
    assert found.parameters.get("c") == ("The second number." if text is NUMPY else None)


@pytest.mark.parametrize("text", [None, "", "  \n "])
def test_no_docstring(text: str | None) -> None:
    assert read_docstring(text) == ("", {})


def test_plain_text_is_the_description() -> None:
    assert read_docstring("Zähle 数え上げ.\n\n  More: of it.") == ("Zähle 数え上げ.\n\nMore: of it.", {})


def test_without_docstring_parser_the_whole_text_is_the_description(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "docstring_parser", None)
    found = read_docstring(GOOGLE)
    assert found.description.startswith("Add two numbers.\n\nThe result is exact.\n\nArgs:\n    a: The first number,")
    assert found.parameters == {}
