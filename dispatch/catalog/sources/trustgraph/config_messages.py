"""Messages of TrustGraph's config service: its dataclasses (``trustgraph.schema.config``, 2.11.1) as JSON, with all fields.
Unknown fields are ignored, and missing ones have their defaults."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from dispatch.messaging.wire.codec import ErrorInfo

T = TypeVar("T")


class MalformedConfigMessageError(ValueError):
    """A response or a notification cannot be decoded; ``str()`` says why."""


class ConfigKey(msgspec.Struct, frozen=True):
    """The place of an item: ``type`` (``tool``, ``tool-service`` …) and ``key``."""

    type: str = ""
    key: str = ""


class ConfigValue(msgspec.Struct, frozen=True):
    """An item.

    Attributes:
        type, key: its place.
        value: its text, mostly JSON; None in a response to ``get``: there is no such item.
        workspace: in responses about all workspaces, otherwise empty.
    """

    type: str = ""
    key: str = ""
    value: str | None = ""
    workspace: str = ""


class ConfigRequest(msgspec.Struct, frozen=True):
    """A request.

    Attributes:
        operation: ``get``, ``put``, ``delete`` (several items), ``list``, ``getvalues`` (of a type), ``getkeys-all-ws``.
        workspace: needed by all but ``getkeys-all-ws``.
        keys: for ``get`` and ``delete``.
        type: for ``list``, ``getvalues`` and ``getkeys-all-ws``.
        values: for ``put``.
    """

    operation: str = ""
    workspace: str = ""
    keys: tuple[ConfigKey, ...] = ()
    type: str = ""
    values: tuple[ConfigValue, ...] = ()


class ConfigResponse(msgspec.Struct, frozen=True):
    """A response.

    Attributes:
        version: of the configuration; counts the writes, and starts at 0 in a new store, where it may be missing (None).
        values: of ``get``, ``getvalues`` and ``getkeys-all-ws``.
        directory: the keys of ``list``.
        config: of the operation ``config``, which dispatch does not use.
        error: None: none.
    """

    version: int | None = 0
    values: tuple[ConfigValue, ...] | None = ()
    directory: tuple[str, ...] | None = ()
    config: Mapping[str, Mapping[str, str | None]] | None = {}
    error: ErrorInfo | None = None


class WorkspaceChanges(msgspec.Struct, frozen=True):
    """Workspaces that were created or deleted."""

    created: tuple[str, ...] | None = ()
    deleted: tuple[str, ...] | None = ()


class ConfigPush(msgspec.Struct, frozen=True):
    """A notification.

    Attributes:
        version: of the configuration.
        changes: types that changed, each with its workspaces. Empty: the service has started, or only workspaces that are
            reserved have changed.
        workspace_changes: None: none.
    """

    version: int | None = 0
    changes: Mapping[str, tuple[str, ...]] | None = {}
    workspace_changes: WorkspaceChanges | None = None


def encode_message(message: ConfigRequest | ConfigResponse | ConfigPush) -> bytes:
    """Return the payload of ``message``."""
    return msgspec.json.encode(message)


def decode_response(payload: bytes) -> ConfigResponse:
    """Return the response in ``payload``.

    Raises:
        MalformedConfigMessageError: it has none.
    """
    return _decode(payload, ConfigResponse)


def decode_push(payload: bytes) -> ConfigPush:
    """Return the notification in ``payload``.

    Raises:
        MalformedConfigMessageError: it has none.
    """
    return _decode(payload, ConfigPush)


def _decode(payload: bytes, type: type[T]) -> T:
    try:
        return msgspec.json.decode(payload, type=type)
    except msgspec.DecodeError as error:
        try:
            # The service encodes with json.dumps, which lets half a surrogate pair pass: one such item must not hide all
            # others.
            return msgspec.convert(json.loads(payload), type)
        except (ValueError, RecursionError):
            raise MalformedConfigMessageError(str(error)) from None
