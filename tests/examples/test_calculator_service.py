from __future__ import annotations

import asyncio
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dispatch
from tests.examples.conftest import Load, Serving

GOOD = {
    "(17.5 + 3) * 12 / 4": "61.5",
    " 1 + 1 ": "2",
    "0.1 + 0.2": "0.3",
    "1 / 4": "0.25",
    "1 / 3": "0." + "3" * 50,
    "100 * 100": "10000",
    "-7 // 2": "-4",
    "-7 % 3": "2",
    "7 % -3": "-2",
    "7.5 % 2": "1.5",
    "0 * -1": "0",
    "2 ** -2": "0.25",
    "2 ** 0.5": "1.4142135623730950488016887242096980785696718753769",
    "2 ** 100": "1267650600228229401496703205376",
    "10 ** 400": "1E+400",
    "1e-30": "1E-30",
    "1_000.5 * 2": "2001",
    "0x10": "16",
    "--1": "1",
    "-" * 299 + "1": "-1",
    "+".join("1" * 150): "150",
}
BAD = {
    "1 +": "invalid-expression",
    "two": "invalid-expression",
    "print(1)": "invalid-expression",
    "().__class__": "invalid-expression",
    "'text' * 3": "invalid-expression",
    "True + 1": "invalid-expression",
    "1j": "invalid-expression",
    "1 if 2 else 3": "invalid-expression",
    "1; 2": "invalid-expression",
    "\x00": "invalid-expression",
    "~1": "invalid-expression",
    "1 << 1000000": "invalid-expression",
    "1 / 0": "division-by-zero",
    "1 // 0": "division-by-zero",
    "1 % 0": "division-by-zero",
    "0 ** 0": "undefined",
    "(-8) ** 0.5": "undefined",
    "1e60 // 1": "undefined",
    "9 ** 9 ** 9": "out-of-range",
    "1e501": "out-of-range",
    "1+" * 150 + "1": "too-long",
    "": "missing-expression",
    "  ": "missing-expression",
}


@pytest.mark.parametrize("expression", GOOD, ids=lambda text: text[:24])
async def test_it_calculates(load: Load, serving: Serving, expression: str) -> None:
    async with serving(load("calculator_service").Calculator(), "calculator") as dispatcher:
        assert await dispatcher.call("calculate", {"expression": expression}) == GOOD[expression]


@pytest.mark.parametrize("expression", BAD, ids=lambda text: repr(text[:24]))
async def test_each_mistake_has_its_type(load: Load, serving: Serving, expression: str) -> None:
    async with serving(load("calculator_service").Calculator(), "calculator") as dispatcher:
        with pytest.raises(dispatch.ToolError) as caught:
            await dispatcher.call("calculate", {"expression": expression})
    assert caught.value.type == BAD[expression]


@pytest.mark.parametrize("arguments", [{}, {"expression": 3}, {"expression": None}, {"expression": ["1"]}])
async def test_an_expression_is_a_text(load: Load, serving: Serving, arguments: dict[str, object]) -> None:
    async with serving(load("calculator_service").Calculator(), "calculator") as dispatcher:
        with pytest.raises(dispatch.ToolError) as caught:
            await dispatcher.call("calculate", arguments)
    assert caught.value.type == "missing-expression"


numbers = st.integers(0, 9_999).map(str) | st.decimals(0, 99, places=2).map(str)
expressions = st.recursive(
    numbers,
    lambda part: st.tuples(part, st.sampled_from("+-*"), part).map(lambda three: f"({' '.join(three)})"),
    max_leaves=8,
)


def test_it_is_exact(load: Load) -> None:
    calculator = load("calculator_service").Calculator()

    @settings(deadline=None)  # a loop of its own each time, on a machine that may be busy
    @given(expressions)
    def check(expression: str) -> None:
        exact = eval("".join(f"Fraction('{t}')" if t[0].isdigit() else t for t in tokens(expression)))
        if len(expression) <= 300:
            result = asyncio.run(calculator.invoke({}, {"expression": expression}))
            assert Fraction(Decimal(result)) == exact

    check()


def tokens(expression: str) -> list[str]:
    return expression.replace("(", "( ").replace(")", " )").split()


@pytest.mark.costly
def test_nothing_gets_past_it(load: Load) -> None:
    calculator = load("calculator_service").Calculator()

    @settings(deadline=None)  # a loop of its own each time, on a machine that may be busy
    @given(st.text("0123456789.eE+-*/%()_x j,=", max_size=60) | st.text(max_size=40))
    def check(expression: str) -> None:
        ended = type_of_end(calculator, expression)
        assert ended in {"success", *BAD.values()}

    check()


def type_of_end(calculator: dispatch.ToolService, expression: str) -> str:
    try:
        asyncio.run(calculator.invoke({}, {"expression": expression}))
    except dispatch.ToolError as error:
        return error.type
    return "success"
