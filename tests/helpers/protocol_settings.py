"""Constants of the session protocol with other values for a test."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import msgspec

from dispatch.protocol.settings import DEFAULT_SETTINGS


@contextlib.contextmanager
def override_settings(**values: Any) -> Iterator[None]:
    """Set fields of the default settings for the duration of the block: every session that is opened in it has them."""
    former = {name: getattr(DEFAULT_SETTINGS, name) for name in values}
    _set(values)
    try:
        yield
    finally:
        _set(former)


def _set(values: dict[str, Any]) -> None:
    for name, value in values.items():
        msgspec.structs.force_setattr(DEFAULT_SETTINGS, name, value)
