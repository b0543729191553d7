"""Repeat safety: the declarations of a tool, and the refusal of settings that contradict them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

import msgspec

from dispatch._internal.arguments import NamedFields
from dispatch.policy.policy import Policy
from dispatch.policy.validation import PolicyError


class Declared(Protocol):
    """The declarations of a tool, with the names of MCP's annotations."""

    @property
    def read_only(self) -> bool:
        """The tool changes no state."""

    @property
    def idempotent(self) -> bool:
        """A repeated call has no further effect."""

    @property
    def destructive(self) -> bool | None:
        """The tool may destroy data; None: not declared, so it may."""


class Annotations(msgspec.Struct, metaclass=NamedFields, frozen=True):
    """Declarations without a descriptor. The defaults are those of a tool that declares nothing."""

    read_only: bool = False
    idempotent: bool = False
    destructive: bool | None = None


UNDECLARED = Annotations()
"""The declarations of an unknown tool, and of a service that is called without a tool."""


def repeatable(tool: Declared) -> bool:
    """Return whether ``tool`` may be executed twice for one call: it is declared read-only or idempotent, and not
    destructive. The second execution of a destructive tool can destroy data that was created after the first."""
    return (tool.read_only or tool.idempotent) and not tool.destructive


def check_repeats(tool: Declared, policy: Policy, own: Collection[str]) -> None:
    """Refuse settings of a tool that contradict its declarations. Called when the tool is loaded.

    Inherited settings are safe: a tool that is not repeatable is retried only if it was not executed, and is not hedged.
    Settings of the tool itself are refused, because their author expects them to have an effect.

    Args:
        tool: its declarations.
        policy: in force for it.
        own: keys, as in a descriptor, of the tool's own policy.

    Raises:
        PolicyError: the settings retry or hedge a destructive tool, hedge one that is neither read-only nor idempotent, or
            share the reply of one that is not read-only.
    """
    if "hedging" in own and policy.hedging is not None:
        if tool.destructive:
            raise PolicyError(
                "hedging", "the tool is declared 'destructive', and a hedge runs it twice", "write null for this tool"
            )
        if not repeatable(tool):
            raise PolicyError(
                "hedging",
                "the tool is neither 'read-only' nor 'idempotent', and a hedge runs it twice",
                "declare the tool so if it is so, or write null for this tool",
            )
    if tool.destructive and "retry" in own and policy.retry is not None and policy.retry.max_attempts > 1:
        raise PolicyError(
            "retry",
            "the tool is declared 'destructive', and a retry may run it twice",
            "leave 'retry' out: a request that was not executed is retried all the same",
        )
    if "single-flight" in own and policy.single_flight and not tool.read_only:
        raise PolicyError(
            "single-flight",
            "the tool is not declared 'read-only', and each of its calls may have to be made",
            "declare the tool so if it is so, or leave it out",
        )
