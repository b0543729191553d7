"""Reads the states of circuits from the metrics of a dispatcher, in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

_METRIC: Final = "dispatch_circuit_state"


class CircuitCount(NamedTuple):
    """How many circuits of a tool are in a state.

    Attributes:
        tool: label of the tool.
        state: of the circuits.
        number: of dispatchers whose circuit of the tool is in that state.
    """

    tool: str
    state: str
    number: int


def parse_circuit_states(text: str) -> Iterator[CircuitCount]:
    """Yield the counts in ``text``.

    Raises:
        ValueError: it has no metrics.
    """
    try:
        for family in text_string_to_metric_families(text):
            if family.name == _METRIC:
                for sample in family.samples:
                    yield CircuitCount(sample.labels["tool"], sample.labels["state"], int(sample.value))
    except (ValueError, KeyError) as error:
        raise ValueError(f"not the text of metrics ({error})") from None
