"""States of circuits in a text of metrics; those of a running dispatcher: tests/unit/cli/catalog/test_circuits.py."""

from __future__ import annotations

import pytest

from dispatch.telemetry.gauges import CircuitCount, parse_circuit_states

TEXT = """\
# TYPE dispatch_circuit_state gauge
dispatch_circuit_state{tool="tell-joke",state="open"} 1.0
dispatch_circuit_state{tool="a \\"b\\"",state="closed"} 2.0
# TYPE dispatch_calls counter
dispatch_calls_total{tool="tell-joke"} 7.0
"""


def test_only_circuits_are_counted() -> None:
    assert list(parse_circuit_states(TEXT)) == [
        CircuitCount("tell-joke", "open", 1),
        CircuitCount('a "b"', "closed", 2),
    ]
    assert list(parse_circuit_states("")) == []


@pytest.mark.parametrize("text", ["<html>{", 'dispatch_circuit_state{state="open"} 1', "dispatch_circuit_state{tool="])
def test_a_text_without_metrics(text: str) -> None:
    with pytest.raises(ValueError, match="not the text of metrics"):
        list(parse_circuit_states(text))
