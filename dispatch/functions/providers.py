"""Values that are injected into parameters of functions, by the type of the parameter."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


class Providers:
    """What :meth:`dispatch.Dispatcher.provide` was given."""

    def __init__(self) -> None:
        self._providers: dict[type, Callable[[], Any]] = {}

    def add(self, type: type, provider: Any) -> None:
        """Provide parameters of ``type``; a second provider of a type replaces the first.

        Raises:
            TypeError: ``type`` is no class, or ``provider`` neither its instance nor callable.
        """
        if not isinstance(type, _CLASS):
            raise TypeError(f"provide() needs a class, not {type!r:.80}. Fix: write provide(Database, database).")
        if _is_instance(provider, type):
            self._providers[type] = lambda: provider
        elif callable(provider):
            self._providers[type] = provider
        else:
            raise TypeError(
                f"the provider of {type.__name__} is {provider!r:.80}, neither an instance of it nor a function. "
                f"Fix: write provide({type.__name__}, instance) or provide({type.__name__}, create_instance)."
            )

    def __contains__(self, type: object) -> bool:
        return type in self._providers

    def get(self, type: type) -> Any:
        """Return the value for a parameter of ``type``: the instance, or what the function returns.

        Raises:
            LookupError: there is no provider.
        """
        try:
            create = self._providers[type]
        except KeyError:
            raise LookupError(
                f"no provider of {type.__name__}. Fix: call dispatcher.provide({type.__name__}, …) before the start."
            ) from None
        return create()


def _is_instance(value: object, cls: type) -> bool:
    try:
        return isinstance(value, cls)
    except TypeError:  # a protocol that cannot be checked
        return not inspect.isroutine(value) and not isinstance(value, type)


_CLASS = type
