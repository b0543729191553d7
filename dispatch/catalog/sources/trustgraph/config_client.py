"""Requests to TrustGraph's config service."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from dispatch._internal.suggestions import excerpt
from dispatch.catalog.sources.broker import Broker
from dispatch.catalog.sources.trustgraph.config_messages import (
    ConfigKey,
    ConfigRequest,
    ConfigResponse,
    ConfigValue,
    MalformedConfigMessageError,
    decode_response,
    encode_message,
)
from dispatch.catalog.sources.trustgraph.config_topics import ConfigTopics

T = TypeVar("T")

TIMEOUT_S: Final = 5.0
"""Seconds until a response must be there. The service answers within milliseconds."""
RESEND_S: Final = 1.0
"""Seconds without a response after which a read is sent again: the topics may drop a message."""
LARGE_BYTES: Final = 256 * 1024
"""Bytes of a response from which it is decoded in a thread: 4 MiB take 10 ms."""
NO_RESPONSE: Final = "no-response"
BAD_RESPONSE: Final = "bad-response"


class ConfigServiceError(RuntimeError):
    """A request to the config service failed.

    Attributes:
        type: the ``type`` of the service's own error; ``no-response``; ``bad-response``.
        operation: of the request.
    """

    def __init__(self, type: str, operation: str, message: str) -> None:
        super().__init__(message)
        self.type = type
        self.operation = operation

    def __reduce__(self) -> tuple[type[ConfigServiceError], tuple[str, str, str]]:
        return ConfigServiceError, (self.type, self.operation, str(self))


class ConfigClient:
    """A client of TrustGraph's config service.

    Args:
        broker: carries the messages.
        topics: of the service, with whole names.
    """

    def __init__(self, broker: Broker, topics: ConfigTopics) -> None:
        self._broker = broker
        self._topics = topics

    async def get_values(self, workspace: str, type: str) -> tuple[dict[str, str], int]:
        """Return the items of one type by key, and the version of the configuration.

        Raises:
            ConfigServiceError: the service does not answer, or with an error. Likewise all methods.
            TransportError: the broker is out of reach. Likewise all methods.
        """

        def read(response: ConfigResponse) -> tuple[dict[str, str], int]:
            values = {each.key: each.value for each in response.values or () if each.value is not None}
            return values, response.version or 0

        return await self._read(ConfigRequest("getvalues", workspace, type=type), read)

    async def get_workspaces(self, type: str) -> tuple[set[str], int]:
        """Return the workspaces that have items of one type, and the version of the configuration."""

        def read(response: ConfigResponse) -> tuple[set[str], int]:
            return {each.workspace for each in response.values or ()}, response.version or 0

        return await self._read(ConfigRequest("getkeys-all-ws", type=type), read)

    async def get_value(self, workspace: str, type: str, key: str) -> str | None:
        """Return the text of an item; None: there is none."""

        def read(response: ConfigResponse) -> str | None:
            return next((each.value for each in response.values or () if (each.type, each.key) == (type, key)), None)

        return await self._read(ConfigRequest("get", workspace, (ConfigKey(type, key),)), read)

    async def list_keys(self, workspace: str, type: str) -> tuple[str, ...]:
        """Return the keys of one type, sorted."""
        return await self._read(
            ConfigRequest("list", workspace, type=type), lambda response: tuple(sorted(response.directory or ()))
        )

    async def put_values(self, workspace: str, values: Iterable[ConfigValue]) -> None:
        """Write items; the service sends one notification with all their types."""
        await self._write(ConfigRequest("put", workspace, values=tuple(values)))

    async def delete_value(self, workspace: str, type: str, key: str) -> None:
        """Delete an item. It need not exist."""
        await self._write(ConfigRequest("delete", workspace, (ConfigKey(type, key),)))

    async def _read(self, request: ConfigRequest, read: Callable[[ConfigResponse], T]) -> T:
        return await self._request(request, read, RESEND_S, "Check that the service runs and uses this topic")

    async def _write(self, request: ConfigRequest) -> None:
        # Sent once: a copy that arrives late would undo the write of another client.
        advice = "It may have been executed: read the item before you write it again"
        await self._request(request, lambda response: None, None, advice)

    async def _request(
        self, request: ConfigRequest, read: Callable[[ConfigResponse], T], resend_after: float | None, advice: str
    ) -> T:
        operation, topics = request.operation, self._topics
        failure = f"TrustGraph's config service on {topics.request}"

        def decode(payload: bytes) -> T:
            response = decode_response(payload)
            if response.error is not None:
                kind, reason = excerpt(response.error.type), excerpt(response.error.message, 200)
                message = (
                    f"{failure} refused '{operation}' ({kind}: {reason}). Check the workspace and the service's log."
                )
                raise ConfigServiceError(response.error.type, operation, message)
            return read(response)

        try:
            payload = await self._broker.request(
                topics.request, topics.response, encode_message(request), timeout=TIMEOUT_S, resend_after=resend_after
            )
        except TimeoutError:
            message = f"{failure} did not answer '{operation}' within {TIMEOUT_S:g} s. {advice}."
            raise ConfigServiceError(NO_RESPONSE, operation, message) from None
        try:
            return await asyncio.to_thread(decode, payload) if len(payload) > LARGE_BYTES else decode(payload)
        except MalformedConfigMessageError as error:
            message = f"{failure} answered '{operation}' with an unreadable response ({error}). {advice}."
            raise ConfigServiceError(BAD_RESPONSE, operation, message) from None
