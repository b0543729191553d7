"""Reading of a policy file: its keys, or every mistake in it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from dispatch._internal.suggestions import excerpt
from dispatch.catalog import Problem
from dispatch.catalog.errors import Report
from dispatch.catalog.frozen_json import describe_kind
from dispatch.catalog.readers.parsing import DocumentError, parse_json
from dispatch.catalog.readers.policy_check import check_policy
from dispatch.cli.exit_codes import CliError

MAX_POLICY_BYTES = 1024 * 1024
"""Maximum file size in bytes; a policy with weights of 10,000 users has a quarter of it."""
_EXAMPLE = 'write an object with the keys of a policy: {"timeout": 10, "retry": {"max-attempts": 2}}'


def check_policy_file(name: str) -> tuple[Mapping[str, Any] | None, list[Problem]]:
    """Read the policy in the file ``name``: its keys (None if invalid) and every problem. A missing or malformed file is a
    problem, not an exception."""
    report = Report(excerpt(name, 4096))
    try:
        raw = parse_json(_text(Path(name)))
    except DocumentError as error:
        for key, problem, fix in error.mistakes:
            report.add_error(key, problem, fix)
        return None, report.problems
    except OSError as error:
        report.add_error("", f"cannot be read: {error.strerror or error}", "name a readable file")
        return None, report.problems
    if not isinstance(raw, dict):
        report.add_error("", f"the file contains {describe_kind(raw)}, not an object", _EXAMPLE)
        return None, report.problems
    if list(raw) == ["policy"] and isinstance(raw["policy"], dict):
        report.add_error("policy", "the keys are one level too deep", f"remove 'policy'; {_EXAMPLE}")
        return None, report.problems
    policy = check_policy(raw, report)
    # check_policy prefixes keys with 'policy.', as in a descriptor; this file has no such level.
    problems = [msgspec.structs.replace(each, key=each.key.removeprefix("policy.")) for each in report.problems]
    return None if report.has_errors else policy, problems


def read_policy_file(name: str, how: str) -> Mapping[str, Any]:
    """Read the policy in the file ``name``.

    Args:
        how: the option or environment variable that named the file.

    Raises:
        CliError: the policy is invalid; the message lists every mistake.
    """
    policy, problems = check_policy_file(name)
    if policy is None:
        count = f"{len(problems)} mistake{'' if len(problems) == 1 else 's'}"
        lines = [f"The policy file of {how} is invalid: {count}.", *(f"  {problem}" for problem in problems)]
        raise CliError("\n".join(lines))
    return policy


def _text(path: Path) -> str:
    if path.exists() and not path.is_file():  # reading a pipe could block forever
        raise DocumentError(("", "not a regular file", "name a file"))
    with path.open("rb") as file:
        content = file.read(MAX_POLICY_BYTES + 1)
    if len(content) > MAX_POLICY_BYTES:
        raise DocumentError(("", f"more than {MAX_POLICY_BYTES:,} bytes", "name a file that contains only a policy"))
    try:
        text = content.decode("utf-8-sig")  # some editors write a byte order mark
    except UnicodeDecodeError as error:
        raise DocumentError(("", f"not UTF-8: byte {error.start:,} is invalid", "convert it to UTF-8")) from None
    if not text.strip():
        raise DocumentError(("", "the file is empty", _EXAMPLE))
    return text
