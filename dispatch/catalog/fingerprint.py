"""Fingerprints of definitions: whether a tool, or its service, is still the one that was approved."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from dispatch.catalog.descriptors import ServiceDescriptor, ToolDescriptor


def fingerprint(tool: ToolDescriptor, service: ServiceDescriptor) -> str:
    """Return the SHA-256 of a tool's definition, in hexadecimal digits.

    It covers what a model reads and where its calls go: the name, the description, the schemas (``arguments``,
    ``input-schema``, ``output-schema``), the service's id and topics, the config and the version. It does not cover the
    policy, the permissions and other keys by which an operator restricts the same tool, nor the service's instances, which
    come and go: see :func:`service_fingerprint`.
    """
    definition = {
        "name": tool.name,
        "description": tool.description,
        "arguments": [
            {"name": each.name, "type": each.type, "description": each.description, "required": each.required}
            for each in tool.arguments
        ],
        "input-schema": tool.input_schema,
        "output-schema": tool.output_schema,
        "service": {"id": service.id, "request-queue": service.request_queue, "response-queue": service.response_queue},
        "config": tool.config,
        "version": tool.version,
    }
    return _hash(definition)


def service_fingerprint(service: ServiceDescriptor) -> str:
    """Return the SHA-256 of a service's definition, in hexadecimal digits.

    It covers the id, all topics with those of the instances, the config parameters and the version. It does not cover the
    policy, the permissions and the weights of instances.
    """
    definition = {
        "id": service.id,
        "request-queue": service.request_queue,
        "response-queue": service.response_queue,
        "config-params": [{"name": each.name, "required": each.required} for each in service.config_params],
        "instances": [
            {
                "id": each.id,
                "request-queue": each.request_queue,
                "response-queue": each.response_queue,
                "version": each.version,
            }
            for each in service.instances
        ],
        "version": service.version,
    }
    return _hash(definition)


def _hash(definition: Mapping[str, object]) -> str:
    text = json.dumps(definition, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
