"""A file with a policy → its keys, or every mistake in it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from dispatch._internal.suggestions import excerpt
from dispatch.catalog import Problem
from dispatch.catalog.errors import Report
from dispatch.catalog.frozen_json import kind
from dispatch.catalog.parsing import DocumentError, parse_json
from dispatch.catalog.readers.policy_check import check_policy
from dispatch.cli.exit_codes import CliError

MAX_POLICY_BYTES = 1024 * 1024
"""The largest file that is read, in bytes. A policy with 10,000 users' weights has a quarter of that."""
_EXAMPLE = 'write an object with the keys of a policy: {"timeout": 10, "retry": {"max-attempts": 2}}'


def check_policy_file(name: str) -> tuple[Mapping[str, Any] | None, list[Problem]]:
    """The keys of the policy in the file ``name``, as they stand there, and everything that is wrong with them; None: they
    cannot be used. Never raises for what the file holds, or that it is not there."""
    report = Report(excerpt(name, 4096))
    try:
        raw = parse_json(_text(Path(name)))
    except DocumentError as error:
        for key, problem, fix in error.mistakes:
            report.error(key, problem, fix)
        return None, report.problems
    except OSError as error:
        report.error("", f"cannot be read: {error.strerror or error}", "give a file that is there, and readable")
        return None, report.problems
    if not isinstance(raw, dict):
        report.error("", f"it holds {kind(raw)}, not an object", _EXAMPLE)
        return None, report.problems
    if list(raw) == ["policy"] and isinstance(raw["policy"], dict):
        report.error("policy", "the keys stand one level too deep", f"take 'policy' away; {_EXAMPLE}")
        return None, report.problems
    policy = check_policy(raw, report)
    # A descriptor has its policy's keys under 'policy'; this file is the policy.
    problems = [msgspec.structs.replace(each, key=each.key.removeprefix("policy.")) for each in report.problems]
    return None if report.failed else policy, problems


def read_policy_file(name: str, how: str) -> Mapping[str, Any]:
    """The keys of the policy in the file ``name``.

    Args:
        how: who named it: an option or a variable of the environment.

    Raises:
        CliError: there are mistakes; it lists all of them.
    """
    policy, problems = check_policy_file(name)
    if policy is None:
        count = f"{len(problems)} mistake{'' if len(problems) == 1 else 's'}"
        lines = [f"The policy that {how} names cannot be used: {count}.", *(f"  {problem}" for problem in problems)]
        raise CliError("\n".join(lines))
    return policy


def _text(path: Path) -> str:
    if path.exists() and not path.is_file():  # a pipe would keep us waiting for ever
        raise DocumentError(("", "not a regular file", "give a file"))
    with path.open("rb") as file:
        content = file.read(MAX_POLICY_BYTES + 1)
    if len(content) > MAX_POLICY_BYTES:
        raise DocumentError(("", f"more than {MAX_POLICY_BYTES:,} bytes", "give a file with a policy alone"))
    try:
        text = content.decode("utf-8-sig")  # some editors begin a UTF-8 file with a byte order mark
    except UnicodeDecodeError as error:
        raise DocumentError(
            ("", f"not UTF-8: byte {error.start:,} begins no character", "convert it to UTF-8")
        ) from None
    if not text.strip():
        raise DocumentError(("", "the file is empty", _EXAMPLE))
    return text
