"""What may be repeated: what a tool is declared to be, and the refusal of settings that would do harm."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

import msgspec

from dispatch.policy.policy import Policy
from dispatch.policy.validation import PolicyError


class Declared(Protocol):
    """What a tool's descriptor declares of it (the names are those of MCP's annotations)."""

    @property
    def read_only(self) -> bool:
        """It changes nothing."""

    @property
    def idempotent(self) -> bool:
        """To call it once more has no further effect."""

    @property
    def destructive(self) -> bool | None:
        """It destroys something; None: nothing was declared, so it may."""


class Annotations(msgspec.Struct, frozen=True):
    """A tool's annotations by themselves. The defaults are what must be assumed of a tool that declares nothing."""

    read_only: bool = False
    idempotent: bool = False
    destructive: bool | None = None


UNDECLARED = Annotations()
"""A tool of which nothing is known, or a service that is called without one."""


def repeatable(tool: Declared) -> bool:
    """May ``tool`` run twice for one call? Only when it is declared read-only or idempotent. One that is declared
    destructive as well may not: its second run can destroy what somebody made anew after the first."""
    return (tool.read_only or tool.idempotent) and not tool.destructive


def check_repeats(tool: Declared, policy: Policy, own: Collection[str]) -> None:
    """Refuse settings that would repeat what must not be repeated. To be called when a tool is loaded.

    What every tool of a service, or all tools, are given is no danger to any: what is not repeatable is only sent again when
    it surely did not run, and is not hedged. Whoever *writes* it for a tool that it cannot be for expects more.

    Args:
        tool: what it is declared to be.
        policy: in force for it.
        own: keys, as in a descriptor, that were written for this tool rather than inherited.

    Raises:
        PolicyError: they would retry or hedge a destructive tool, hedge one that is neither read-only nor idempotent, or
            share the answer of one that is not read-only.
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
            "leave 'retry' out: what surely did not run is sent again all the same",
        )
    if "single-flight" in own and policy.single_flight and not tool.read_only:
        raise PolicyError(
            "single-flight",
            "the tool is not declared 'read-only', and each of its calls may have to be made",
            "declare the tool so if it is so, or leave it out",
        )
