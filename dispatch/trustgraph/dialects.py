"""The two dialects of TrustGraph's client: that of the published package, and that of the specification, whose first
argument is the user."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from dispatch.errors import ErrorType, InvalidArgumentsError
from dispatch.messaging.wire.codec import json_text

DEFAULT_TIMEOUT_S = 600.0
"""TrustGraph's own default for a tool service."""

Callback = Callable[[str], Awaitable[object] | object]
"""Receives a chunk; its result is awaited if it is awaitable."""


def bind_values(names: tuple[str, ...], values: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a call in either dialect, by name.

    Args:
        names: names of the values after the user, in their order; the last is ``timeout``.
        values, named: positional and keyword arguments of the call.

    Raises:
        TypeError: the arguments fit neither dialect.
    """
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


def encode_config(config: Mapping[str, Any] | None) -> str:
    """Return the config values as the JSON text of a request.

    Raises:
        InvalidArgumentsError: a value is not JSON.
    """
    try:
        return json_text(config or {}, "config")
    except TypeError as error:
        raise InvalidArgumentsError(
            ErrorType.INVALID_CONFIG, f"The tool was not executed: {error}. Correct the config values."
        ) from None


def has_user_parameter(client: Any) -> bool:
    """Return whether the first parameter of ``client.call`` is the user.

    Raises:
        TypeError: the client has no ``call``.
    """
    call = getattr(client, "call", None)
    if not callable(call):
        raise TypeError(f"{type(client).__name__} has no method 'call': wrap a ToolServiceClient")
    try:
        parameters = list(inspect.signature(call).parameters)
    except (TypeError, ValueError):
        return False
    return bool(parameters) and parameters[0] == "user"


async def call_back(callback: Callback, chunk: str) -> None:
    """Call ``callback`` with ``chunk``, and await its result if it is awaitable."""
    result = callback(chunk)
    if inspect.isawaitable(result):
        await result
