"""TrustGraph's client over our path, and our path around TrustGraph's client: the one-line faces."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from dispatch.messages import json_text
from dispatch.outcome import CallTimeout, DispatchError, InvalidArguments, ToolError, TransportError
from dispatch.policy import PolicyError, check_seconds

if TYPE_CHECKING:
    from dispatch.dispatcher import Dispatcher

DEFAULT_TIMEOUT_S = 600.0
"""TrustGraph's own default for a tool service."""

TIDY_S = 0.05
"""What a wrapped client gets beyond the limit, to end by itself."""

Callback = Callable[[str], Awaitable[object] | object]
"""Takes a chunk; awaited if it can be."""


class ToolServiceClient:
    """TrustGraph's ``ToolServiceClient`` over a dispatcher: the same calls, in both dialects.

        await client.call({"style": "pun"}, {"topic": "cats"}, timeout=600)      # the published package 2.11.1
        await client.call("alice", {"style": "pun"}, {"topic": "cats"})          # the specification

    Args:
        dispatcher: a started dispatcher.
        service: id of a tool service in its catalogue.

    Raises:
        Rejected: there is no such service.
    """

    def __init__(self, dispatcher: Dispatcher, *, service: str) -> None:
        self._dispatcher = dispatcher
        self._target = dispatcher.service_target(service)

    async def call(self, *values: Any, timeout: float = DEFAULT_TIMEOUT_S, **named: Any) -> str:
        """``call(config, arguments, timeout=600)`` or ``call(user, config, arguments, timeout=600)``.

        Returns:
            The answer; a stream's chunks put together.

        Raises:
            DispatchError: a ``RuntimeError``, as TrustGraph's client raises, with type, message and advice.
            TypeError: neither dialect.
        """
        given = _dialect(("config", "arguments", "timeout"), values, named | {"timeout": timeout})
        result = await self._dispatcher.perform(
            self._target,
            _config_text(given["config"]),
            given["arguments"] or {},
            user=given["user"],
            timeout=given["timeout"],
        )
        if result.error is not None:
            raise result.error
        return result.text

    async def call_streaming(self, *values: Any, timeout: float = DEFAULT_TIMEOUT_S, **named: Any) -> str:
        """``call_streaming([user,] config, arguments, callback, timeout=600)``: ``callback`` gets each chunk.

        Returns:
            All the chunks, put together.

        Raises:
            DispatchError, TypeError: as :meth:`call`.
        """
        given = _dialect(("config", "arguments", "callback", "timeout"), values, named | {"timeout": timeout})
        chunks: list[str] = []
        stream = self._dispatcher.perform_stream(
            self._target,
            _config_text(given["config"]),
            given["arguments"] or {},
            user=given["user"],
            timeout=given["timeout"],
            idle_timeout=given["timeout"],  # TrustGraph's client knows no other limit
        )
        async with contextlib.aclosing(stream):  # a callback that raises must not leave it open
            async for chunk in stream:
                chunks.append(chunk)
                await _tell(given["callback"], chunk)
        return "".join(chunks)


def wrap(client: Any, *, tool: str) -> WrappedClient:
    """Our path around a client of TrustGraph's: typed errors and one deadline, whatever the client itself does.

    Args:
        client: anything with TrustGraph's ``call(config, arguments, timeout=…)`` (2.11.1) or ``call(user, config,
            arguments, timeout=…)`` (the specification); ``call_streaming`` likewise.
        tool: the name for errors, metrics and policy.

    Raises:
        TypeError: the client has no such ``call``.
    """
    return WrappedClient(client, tool)


class WrappedClient:
    """See :func:`wrap`. The same calls as :class:`ToolServiceClient`; the message still goes the client's own way."""

    def __init__(self, client: Any, tool: str) -> None:
        self._client = client
        self.tool = tool
        self._takes_user = _takes_user(client)

    async def call(self, *values: Any, timeout: float = DEFAULT_TIMEOUT_S, **named: Any) -> str:
        """As :meth:`ToolServiceClient.call`."""
        given = _dialect(("config", "arguments", "timeout"), values, named | {"timeout": timeout})
        return await self._guarded(given, lambda limit: self._client.call(*self._leading(given), timeout=limit))

    async def call_streaming(self, *values: Any, timeout: float = DEFAULT_TIMEOUT_S, **named: Any) -> str:
        """As :meth:`ToolServiceClient.call_streaming`."""
        given = _dialect(("config", "arguments", "callback", "timeout"), values, named | {"timeout": timeout})
        loop = asyncio.get_running_loop()
        started = loop.time()

        async def callback(chunk: str) -> None:
            # Asked at each chunk too: before Python 3.12 asyncio.wait_for, which TrustGraph's client uses, can swallow
            # the cancellation by which a limit is kept.
            if loop.time() - started >= given["timeout"]:
                raise TimeoutError
            try:
                await _tell(given["callback"], chunk)
            except Exception as error:
                raise _CallbackFailed(error) from error

        return await self._guarded(
            given, lambda limit: self._client.call_streaming(*self._leading(given), callback, timeout=limit)
        )

    def _leading(self, given: Mapping[str, Any]) -> tuple[Any, ...]:
        if self._takes_user:
            return given["user"], given["config"], given["arguments"]
        return given["config"], given["arguments"]

    async def _guarded(self, given: Mapping[str, Any], call: Callable[[float], Awaitable[str]]) -> str:
        try:
            limit = check_seconds(given["timeout"])
            json_text(given["arguments"] or {}, "arguments")
        except (PolicyError, TypeError) as error:
            raise InvalidArguments("invalid-arguments", f"{error}. '{self.tool}' was not called.") from None
        # The guards' place, as in Dispatcher.perform; the client itself is the exchange.
        try:
            # The client's own limit is per message and starts late; ours covers everything. It comes a moment later,
            # because TrustGraph's client tidies up after its own limit only.
            async with asyncio.timeout(limit + TIDY_S):
                return await call(limit)
        except _CallbackFailed as failed:
            raise failed.error from None
        except TimeoutError:
            raise CallTimeout(
                f"'{self.tool}' gave no complete answer within {limit:g} s. It may have run all the same: do not repeat "
                "the call unless you know that it did nothing.",
                clock="call",
            ) from None
        except DispatchError:
            raise
        except RuntimeError as error:
            # TrustGraph's client keeps the message of the tool's error, and loses its type.
            raise ToolError("tool-error", str(error)) from error
        except Exception as error:
            raise TransportError(
                "client-failed", f"The client of '{self.tool}' failed: {type(error).__name__}: {error}"
            ) from error


class _CallbackFailed(Exception):
    """Carries what the caller's callback raised through the client: it is the caller's own, not the client's failure."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def _dialect(names: tuple[str, ...], values: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """The values of a call by name, whichever dialect it was written in."""
    if values and isinstance(values[0], str):
        if "user" in named:
            raise TypeError("'user' is given twice")
        named["user"], values = values[0], values[1:]
    given: dict[str, Any] = {"user": named.pop("user", "")}
    if len(values) > len(names):
        raise TypeError(f"at most {len(names)} values after the user: {', '.join(names)}")
    given.update(zip(names, values, strict=False))
    for name in names:
        if name in named:
            if name not in given or name == "timeout":
                given.setdefault(name, named[name])
                del named[name]
            else:
                raise TypeError(f"'{name}' is given twice")
    missing = [name for name in names if name not in given]
    if missing or named:
        problem = f"'{missing[0]}' is missing" if missing else f"'{next(iter(named))}' is not known"
        raise TypeError(f"{problem}; write ([user,] {', '.join(names)})")
    if not isinstance(given["user"], str):
        raise TypeError(f"user must be a text, not {type(given['user']).__name__}")
    return given


def _config_text(config: Mapping[str, Any] | None) -> str:
    try:
        return json_text(config or {}, "config")
    except TypeError as error:
        raise InvalidArguments("invalid-config", f"{error}. Nothing was sent.") from None


def _takes_user(client: Any) -> bool:
    call = getattr(client, "call", None)
    if not callable(call):
        raise TypeError(f"{type(client).__name__} has no method 'call': wrap a ToolServiceClient")
    try:
        parameters = list(inspect.signature(call).parameters)
    except (TypeError, ValueError):
        return False
    return bool(parameters) and parameters[0] == "user"


async def _tell(callback: Callback, chunk: str) -> None:
    told = callback(chunk)
    if inspect.isawaitable(told):
        await told
