"""A tool service that evaluates arithmetic exactly and safely.

It does not trust its input. The expression comes from a model, so it is parsed and never evaluated by Python; its length
and every intermediate number are bounded: decimal arithmetic with 50 digits makes each operation cheap for any expression.
Each error has its own type and a message that names the correction.

    python examples/calculator_service.py --broker pulsar://localhost:6650
    dispatch call calculate 'expression=(17.5 + 3) * 12 / 4' --broker pulsar://localhost:6650 --catalog examples/tools
Or serve it without main():
    dispatch serve examples/calculator_service.py:Calculator --service calculator --broker pulsar://localhost:6650
"""

import argparse
import ast
import asyncio
import decimal
import logging
import operator
import sys
from decimal import Decimal

import dispatch

MAX_LENGTH = 300
ARITHMETIC = decimal.Context(
    prec=50,
    Emax=500,
    Emin=-500,
    traps=[decimal.DivisionByZero, decimal.InvalidOperation, decimal.Overflow],
)


def floor_divmod(a: Decimal, b: Decimal) -> tuple[Decimal, Decimal]:
    """Round towards minus infinity, as Python does and Decimal does not."""
    if not b:
        raise ZeroDivisionError
    quotient, rest = divmod(a, b)
    return (quotient - 1, rest + b) if rest and (rest < 0) != (b < 0) else (quotient, rest)


BINARY = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: lambda a, b: floor_divmod(a, b)[0],
    ast.Mod: lambda a, b: floor_divmod(a, b)[1],
    ast.Pow: operator.pow,
}
UNARY = {ast.UAdd: operator.pos, ast.USub: operator.neg}


def evaluate(node: ast.expr, text: str) -> Decimal:
    match node:
        case ast.BinOp(left, op, right) if type(op) in BINARY:
            return BINARY[type(op)](evaluate(left, text), evaluate(right, text))
        case ast.UnaryOp(op, operand) if type(op) in UNARY:
            return UNARY[type(op)](evaluate(operand, text))
        case ast.Constant(int(value)) if not isinstance(value, bool):
            return +Decimal(value)
        case ast.Constant(float()):  # from the source text: 0.1 is exactly a tenth
            return +Decimal(ast.get_source_segment(text, node))
    raise dispatch.ToolError("invalid-expression", "Use only numbers, + - * / // % ** and parentheses.")


class Calculator(dispatch.ToolService):
    async def invoke(self, config, arguments):
        text = arguments.get("expression")
        if not isinstance(text, str) or not text.strip():
            raise dispatch.ToolError("missing-expression", 'Pass a string: {"expression": "(17.5 + 3) * 12 / 4"}.')
        text = text.strip()
        if len(text) > MAX_LENGTH:
            raise dispatch.ToolError(
                "too-long", f"{len(text)} characters exceed the limit of {MAX_LENGTH}. Split the expression."
            )
        try:
            with decimal.localcontext(ARITHMETIC):
                result = (evaluate(ast.parse(text, mode="eval").body, text) + 0).normalize()  # + 0 removes a minus zero
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise dispatch.ToolError(
                "invalid-expression", "The expression is not valid. Write for example: (17.5 + 3) * 12 / 4"
            ) from None
        except ZeroDivisionError:
            raise dispatch.ToolError(
                "division-by-zero", "The expression divides by zero. Change the divisor."
            ) from None
        except decimal.Overflow:
            raise dispatch.ToolError(
                "out-of-range", "The value or an intermediate value exceeds 1e500. Use smaller numbers."
            ) from None
        except decimal.InvalidOperation:
            raise dispatch.ToolError(
                "undefined", "The expression has no value, or one with more than 50 digits."
            ) from None
        return f"{result:f}" if -20 < result.adjusted() < 50 else str(result)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", default="pulsar://localhost:6650", help="URL of the broker (default: %(default)s)")
    broker = parser.parse_args().broker
    logging.basicConfig(level=logging.INFO, format="%(message)s")  # logs the topics to standard error
    try:
        asyncio.run(dispatch.serve(Calculator(), broker, service="calculator"))
    except KeyboardInterrupt:
        sys.exit(130)
    except dispatch.DispatchError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
