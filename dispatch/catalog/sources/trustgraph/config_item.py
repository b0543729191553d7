"""Reads the text of a config value as an item, in the way in which TrustGraph's agent reads it."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from dispatch._internal.suggestions import excerpt
from dispatch.catalog.descriptors import ARGUMENT_TYPES
from dispatch.catalog.readers.item import Item
from dispatch.catalog.readers.item_key import ItemKey
from dispatch.catalog.readers.tool import OTHER_NAMES_OF_TYPES

_log = logging.getLogger("dispatch.catalog")


def read_config_item(source: str, workspace: str, kind: str, key: str, text: str, namespace: str = "") -> Item:
    """Return the item in a config value. The text never raises an exception: one that is not JSON is the item's content,
    which the reader of descriptors refuses.

    TrustGraph's agent is more lenient than the reader of descriptors. Therefore:

    - the id of a service is its key, to which tools refer, whatever ``id`` is inside. The key ``NAME@VERSION`` is a version
      of the service ``NAME``, which a tool that refers to the key requires;
    - a config param may be a plain text, and may be repeated;
    - the description of a tool, and the type and the description of an argument, may be missing (``""``, ``string``);
    - a type of an argument that is not one of JSON Schema is read as the one that it means, otherwise as ``string``, with
      a warning in the log: it is a hint for the model only.

    Args:
        source: id of the source, for messages.
        workspace, kind, key: place of the value; ``kind`` is its config type.
        text: the value.
        namespace: see :class:`~dispatch.catalog.readers.item.Item`.
    """
    origin = f"{source}:{workspace}/{kind}/{key}"
    raw: object = text
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError):
        return Item(origin, kind, key, text, namespace)
    if isinstance(raw, dict):
        if kind == "tool-service":
            raw = _normalize_service(raw, key)
        elif raw.get("type") == "tool-service":
            raw = _normalize_tool(raw, origin)
    return Item(origin, kind, key, raw, namespace)


def _normalize_service(raw: Mapping[str, Any], key: str) -> dict[str, Any]:
    service = {**raw, "id": ItemKey.parse(key).name}
    params = raw.get("config-params")
    if isinstance(params, list):
        service["config-params"] = _normalize_params(params)
    return service


def _normalize_params(params: list[Any]) -> list[Any]:
    named: dict[str, dict[str, Any]] = {}
    others = []
    for param in params:
        entry = {"name": param} if isinstance(param, str) else param
        name = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(name, str):
            others.append(param)  # the reader reports it
            continue
        first = named.setdefault(name, {**entry, "required": False})
        first["required"] = first["required"] or bool(entry.get("required"))
    return [*named.values(), *others]


def _normalize_tool(raw: Mapping[str, Any], origin: str) -> dict[str, Any]:
    tool = {**raw}
    if tool.get("description") is None:
        tool["description"] = ""
    service = raw.get("service")
    if isinstance(service, str):
        name, version = ItemKey.parse(service)
        if version is not None:
            tool["service"] = name
            tool.setdefault("requires", version)
    arguments = raw.get("arguments")
    if isinstance(arguments, list):
        tool["arguments"] = [
            _normalize_argument(entry, f"{origin}: arguments[{index}]") if isinstance(entry, dict) else entry
            for index, entry in enumerate(arguments)
        ]
    return tool


def _normalize_argument(entry: Mapping[str, Any], place: str) -> dict[str, Any]:
    argument = {**entry}
    if argument.get("description") is None:
        argument["description"] = ""
    given = argument.get("type")
    if given in (None, ""):
        argument["type"] = "string"
    elif isinstance(given, str) and given not in ARGUMENT_TYPES:
        argument["type"] = OTHER_NAMES_OF_TYPES.get(given.strip().casefold(), "string")
        _log.warning(
            "%s.type: the argument type '%s' is unknown: it is read as '%s'. Fix: write one of %s.",
            place,
            excerpt(given),
            argument["type"],
            ", ".join(ARGUMENT_TYPES),
        )
    return argument
