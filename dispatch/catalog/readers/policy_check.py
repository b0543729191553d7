"""Check the ``policy`` object of a descriptor with the policy's own parser, and report each mistake in it."""

from __future__ import annotations

from typing import Any

from dispatch._internal.suggestions import excerpt
from dispatch.catalog.errors import Report
from dispatch.catalog.frozen_json import FrozenDict
from dispatch.policy import DEFAULT_POLICY, Policy, PolicyError, parse_policy


def check_policy(raw: dict[str, Any] | None, report: Report, base: Policy = DEFAULT_POLICY) -> FrozenDict[Any]:
    """The keys of ``raw`` as they are, each mistake reported under ``policy.…``.

    The parser stops at its first mistake; so the key it names is set aside and the rest is parsed again.
    """
    if raw is None:
        return FrozenDict()
    left = dict(raw)
    while True:
        try:
            parse_policy(left, base)
        except PolicyError as error:
            report.error(f"policy.{excerpt(error.key, 62)}", excerpt(error.problem, 200), error.fix)
            at_fault = error.key if error.key in left else error.key.split(".")[0]
            if at_fault not in left:
                return FrozenDict(raw)
            del left[at_fault]
        else:
            return FrozenDict(raw)
