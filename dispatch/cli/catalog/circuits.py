"""States of circuits in running processes, read from their metrics endpoints."""

from __future__ import annotations

import urllib.request
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from dispatch.cli.exit_codes import CliError, Exit

TIMEOUT_S: Final = 5.0
"""Seconds until a metrics endpoint must answer: half of the default scrape timeout of Prometheus."""
MAX_BYTES: Final = 64 * 1024 * 1024
"""Of one answer: some 200,000 series."""


def read_circuits(urls: Sequence[str], warn: Callable[[str], object] = lambda _: None) -> Mapping[str, str]:
    """Return the state of each tool's circuit by the tool's label: ``open``, or ``2 of 5 open`` if the circuits of several
    dispatchers differ.

    Args:
        urls: of metrics endpoints.
        warn: receives a text for each endpoint without a circuit.

    Raises:
        CliError: one cannot be read.
    """
    from dispatch.telemetry.metrics.circuit_states import parse_circuit_states

    states: dict[str, Counter[str]] = {}
    for url in urls:
        text = _fetch(url)
        has_circuits = False
        try:
            for tool, state, number in parse_circuit_states(text):
                states.setdefault(tool, Counter())[state] += number
                has_circuits = True
        except ValueError as error:
            raise CliError(
                f"The answer of {url} is {error}.", "give the URL of a metrics endpoint", Exit.TRANSPORT
            ) from None
        if not has_circuits:
            warn(
                f"The metrics at {url} have no circuits: that process is no agent, or has called no tool yet. Give the "
                "endpoint of a process that calls tools, not that of a tool service."
            )
    return {tool: _describe(counts) for tool, counts in states.items()}


def _describe(counts: Counter[str]) -> str:
    total = counts.total()
    others = [(state, number) for state, number in counts.items() if number and state != "closed"]
    if not others:
        return "closed"
    return ", ".join(state if number == total else f"{number} of {total} {state}" for state, number in others)


def _fetch(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise CliError(f"'{url}' is no URL of a metrics endpoint.", "write --metrics http://HOST:PORT/metrics")
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            content: bytes = answer.read(MAX_BYTES)
    except (OSError, ValueError) as error:  # a URLError is an OSError
        reason = getattr(error, "reason", error)
        raise CliError(
            f"The metrics at {url} cannot be read: {reason}.",
            "give the URL of the metrics endpoint of a running agent (docs/how-to/observe.md)",
            Exit.TRANSPORT,
        ) from None
    return content.decode(errors="replace")
