"""Fingerprints of definitions: they change when a tool means something else to a model, or goes somewhere else."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import msgspec

from dispatch.catalog.descriptors import ServiceDescriptor, ToolDescriptor


def fingerprint(tool: ToolDescriptor, service: ServiceDescriptor) -> str:
    """Return the SHA-256, in hex, of the canonical JSON (RFC 8785 in its simplest form: sorted keys, no blanks, UTF-8) of a
    tool's name, description, schemas, config and version, and of its service."""
    return _hash(
        {
            "name": tool.name,
            "description": tool.description,
            "arguments": msgspec.to_builtins(tool.arguments),
            "output-schema": tool.output_schema,
            "config": tool.config,
            "service": _identity(service),
        }
    )


def service_fingerprint(service: ServiceDescriptor) -> str:
    """Return the same of a service: its id, topics, config params and version."""
    return _hash({**_identity(service), "config-params": msgspec.to_builtins(service.config_params)})


def _identity(service: ServiceDescriptor) -> dict[str, Any]:
    return {
        "id": service.id,
        "request-queue": service.request_queue,
        "response-queue": service.response_queue,
        "version": service.version,
    }


def _hash(value: dict[str, Any]) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
