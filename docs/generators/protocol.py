"""Packets, frames, constants and ends of sessions, read from :mod:`dispatch.protocol`."""

from __future__ import annotations

import inspect
import re
import typing

import msgspec

from dispatch.protocol import events
from dispatch.protocol import settings as settings_module
from dispatch.protocol.events import Failure
from dispatch.protocol.frames import Frame, Packet
from dispatch.protocol.settings import DEFAULT_SETTINGS, Settings
from docs.generators.docstrings import attributes, constants, descriptions_below, markdown, table


def packet() -> str:
    """Return a table of the elements of a packet."""
    described = {**attributes(Packet.__mro__[1]), **attributes(Packet)}  # the header's, and its own
    rows = [(str(at), f"`{name}`", described[name]) for at, name in enumerate(Packet.__struct_fields__)]
    return table(("Element", "Name", "Meaning"), rows)


def frames() -> str:
    """Return a table of the frames, by their numbers."""
    rows = [
        (
            str(kind.__struct_config__.tag),
            kind.__name__.upper(),
            ", ".join(f"`{name}`" for name in kind.__struct_fields__),
            _meaning(kind),
        )
        for kind in frame_kinds()
    ]
    return table(("Kind", "Frame", "Elements after the kind", "Meaning"), rows)


def frame_kinds() -> list[type[msgspec.Struct]]:
    """Return the classes of the frames, by their numbers."""
    kinds: tuple[type[msgspec.Struct], ...] = typing.get_args(Frame)
    return sorted(kinds, key=lambda kind: int(str(kind.__struct_config__.tag)))


def settings() -> str:
    """Return a table of the constants."""
    rows = [
        (f"`{name}`", _value(getattr(DEFAULT_SETTINGS, name)), meaning)
        for name, meaning in descriptions_below(settings_module, Settings)
    ]
    return table(("Constant", "Value", "Meaning and reason"), rows)


def failures() -> str:
    """Return a table of the reasons for which a request or a session ends without an answer."""
    return table(("Reason", "Meaning"), [(f"`{value}`", text) for value, text in constants(events, Failure)])


def _meaning(kind: type[msgspec.Struct]) -> str:
    text = markdown((inspect.getdoc(kind) or "").partition("Attributes:\n")[0])
    fields = [f"`{name}`: {_lower(meaning)}" for name, meaning in attributes(kind).items()]
    return " ".join([text, *fields])


def _lower(text: str) -> str:
    return text if re.match(r"[A-Z]{2}", text) else text[:1].lower() + text[1:]


def _value(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"
