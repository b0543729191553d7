"""Encoded messages and client options of the bare processes."""

from __future__ import annotations

import json
from typing import Any

import pulsar

from benchmarks.workers.channel import ARGUMENTS, Spec

REQUEST = json.dumps({"user": "", "config": "{}", "arguments": json.dumps(ARGUMENTS)}).encode()
LARGE = {"large": "1"}
"""Properties of the request for the large answer."""


def reply(spec: Spec) -> bytes:
    """Return the encoded reply."""
    return _encode_reply(spec.text)


def large_reply(spec: Spec) -> bytes:
    """Return the encoded large reply."""
    return _encode_reply(spec.large_text)


def _encode_reply(text: str) -> bytes:
    return json.dumps({"error": None, "response": text, "end_of_stream": True}).encode()


def client_options(spec: Spec) -> dict[str, Any]:
    """Keyword arguments for a client of pulsar-client."""
    options: dict[str, Any] = {"logger": pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)}
    if spec.token is not None:
        options["authentication"] = pulsar.AuthenticationToken(spec.token)
    return options
