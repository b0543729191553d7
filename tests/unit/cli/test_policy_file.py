"""A file with a policy → its keys, or every mistake in it."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

import dispatch
from dispatch.cli.base import check_policy_file, read_policy_file
from dispatch.policy import MAX_FILE_BYTES as MAX_POLICY_BYTES
from tests.unit.cli.conftest import Run, write_catalog


def told(content: str | bytes) -> list[str]:
    Path("p.json").write_bytes(content.encode() if isinstance(content, str) else content)
    policy, problems = check_policy_file("p.json")
    assert policy is None
    assert all(problem.file == "p.json" for problem in problems)
    return [f"{problem.key}: {problem.problem}; {problem.fix}" for problem in problems]


def test_the_keys_as_they_stand_there() -> None:
    Path("p.json").write_text('\ufeff{"timeout": 10, "retry": 2, "hedging": null}')
    assert check_policy_file("p.json") == ({"timeout": 10, "retry": 2, "hedging": None}, [])
    assert read_policy_file("p.json", "--policy") == {"timeout": 10, "retry": 2, "hedging": None}


def test_every_mistake_with_its_key_and_what_is_allowed() -> None:
    wrong = {"timeot": 1, "breaker": {"half-open-calls": 0}, "balancing": "least-requests", "timeout": "soon"}
    lines = sorted(told(json.dumps(wrong)))
    assert lines == [
        "balancing.strategy: 'least-requests' is unknown; did you mean 'least-request'? known: round-robin, weighted, "
        "least-request, peak-ewma",
        "breaker.half-open-calls: 0 is not a whole number from 1 to 100; give a whole number ≥ 1 and ≤ 100",
        lines[2],
        lines[3],
    ]
    assert lines[2].startswith("timeot: unknown key; did you mean 'timeout'? known keys: timeout, attempt-timeout")
    assert lines[3] == "timeout: 'soon' is not a number; give seconds, for instance 10 or 0.5"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "the file is empty; write an object with the keys of a policy"),
        ("{", "not JSON: .* at line 1, column 2; correct line 1"),
        ('{"timeout": NaN}', "NaN is not a JSON number"),
        ('{"timeout": 1, "timeout": 2}', "timeout: duplicate key 'timeout'"),
        ("[1]", r"not an object; write an object with the keys of a policy: \{\"timeout\": 10"),
        ('{"policy": {"timeout": 1}}', "policy: the keys are one level too deep; remove 'policy'"),
        (b'{"timeout": "\xff"}', "not UTF-8: byte 13"),
        (" " * (MAX_POLICY_BYTES + 1), "more than 1,048,576 bytes"),
        ("[" * 100_000, "too many nested objects or lists"),
    ],
)
def test_what_is_no_policy_is_told(content: str | bytes, problem: str) -> None:
    (line,) = told(content)
    assert re.search(problem, line), line


def test_a_file_that_is_not_there_or_is_none() -> None:
    for name, problem in (("nowhere.json", "cannot be read: No such file"), (".", "not a regular file")):
        policy, (mistake,) = check_policy_file(name)
        assert policy is None
        assert mistake.problem.startswith(problem)
    os.mkfifo("pipe")
    assert check_policy_file("pipe")[1][0].problem == "not a regular file"


def test_a_call_has_the_users_policy(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_catalog(tmp_path / "tools")
    Path("p.json").write_text('{"max-request-bytes": 40}')
    genuine = dispatch.connect
    # Nobody serves there; nothing is sent either.
    monkeypatch.setattr(
        "dispatch.dispatcher.connect",
        lambda _broker, *args, **kwargs: genuine("memory://call", *args, **kwargs),
    )
    end = run("call", "tell-joke", "topic=cats", "--policy", "p.json")
    assert end.code == 2
    assert "the limit is 40" in end.err
    end = run("--policy", "p.json", "call", "tell-joke", "topic=cats")
    assert "the limit is 40" in end.err


def test_a_call_with_a_wrong_policy_is_not_made(run: Run, tmp_path: Path) -> None:
    write_catalog(tmp_path / "tools")
    Path("p.json").write_text('{"timeout": 0}')
    end = run("call", "tell-joke", "topic=cats", "--policy", "p.json")
    assert end.code == 2
    assert "p.json: timeout: 0 is out of range. Fix: give seconds above 0" in end.err
