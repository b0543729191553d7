"""Checks the ``policy`` object of a descriptor with the policy's parser, and reports each error in it."""

from __future__ import annotations

from typing import Any

from dispatch._internal.suggestions import excerpt
from dispatch.catalog.descriptors import EMPTY
from dispatch.catalog.errors import Report
from dispatch.catalog.frozen_json import FrozenDict
from dispatch.policy import DEFAULT_POLICY, Policy, PolicyError, parse_policy


def check_policy(raw: dict[str, Any] | None, report: Report, base: Policy = DEFAULT_POLICY) -> FrozenDict[Any]:
    """Return the keys of ``raw`` unchanged, and report each error under ``policy.…``.

    The parser stops at its first error: the key of that error is removed, and the rest is parsed again.
    """
    if not raw:
        return EMPTY
    remaining = dict(raw)
    while True:
        try:
            parse_policy(remaining, base)
        except PolicyError as error:
            report.add_error(f"policy.{excerpt(error.key, 62)}", excerpt(error.problem, 200), error.fix)
            at_fault = error.key if error.key in remaining else error.key.split(".")[0]
            if at_fault not in remaining:
                return FrozenDict(raw)
            del remaining[at_fault]
        else:
            return FrozenDict(raw)
