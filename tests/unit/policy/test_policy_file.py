"""A policy in a file, and keys of a policy in code: every mistake at once."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

import dispatch
from dispatch.policy import Policy, PolicyError, RateLimit, Retry, parse_policy, read_policy


def test_a_file_has_the_keys_of_a_descriptor(tmp_path: Path) -> None:
    (tmp_path / "policy.json").write_text('\ufeff{"timeout": 10, "retry": 2, "rate-limit": "5/s", "breaker": null}')
    (tmp_path / "policy.yaml").write_text("timeout: 10\nretry: 2   # attempts\nrate-limit: 5/s\nbreaker: null\n")
    wanted = Policy(timeout=10, retry=Retry(max_attempts=2), rate_limit=RateLimit("5/s"), breaker=None)
    assert Policy.load(tmp_path / "policy.json") == Policy.load(str(tmp_path / "policy.yaml")) == wanted


def test_every_mistake_in_a_file_is_listed(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("timeout: soon\nretry: {max-attempts: 0, max-backof: 2, budget-ratio: 7}\n")
    with pytest.raises(PolicyError) as caught:
        Policy.load(file)
    fixes = [line.split(" Fix: ")[0] for line in str(caught.value).splitlines()]
    assert fixes == [
        f"The policy in '{file}' is invalid: 4 mistakes.",
        f"  {file}: retry.max-attempts: 0 is not a whole number from 1 to 10.",
        f"  {file}: retry.max-backof: unknown key.",
        f"  {file}: retry.budget-ratio: 7 is not from 0 to 1.",
        f"  {file}: timeout: 'soon' is not a number.",
    ]
    assert (caught.value.key, caught.value.file) == ("retry.max-attempts", str(file))
    assert pickle.loads(pickle.dumps(caught.value)).mistakes == caught.value.mistakes


@pytest.mark.parametrize(
    ("content", "problem"), [(b"timeout: [", "not YAML"), (b"", "the file is empty"), (b"- 1", "contains a list")]
)
def test_what_is_no_policy_says_so(tmp_path: Path, content: bytes, problem: str) -> None:
    (tmp_path / "policy.yml").write_bytes(content)
    with pytest.raises(PolicyError, match=problem):
        Policy.load(tmp_path / "policy.yml")
    with pytest.raises(PolicyError, match="cannot be read: No such file"):
        Policy.load(tmp_path / "missing.json")


def test_every_mistake_in_code_is_listed() -> None:
    with pytest.raises(PolicyError) as caught:
        Policy(timeout=0, slo=7)  # type: ignore[arg-type] # wrong on purpose
    assert [key for key, _problem, _fix in caught.value.mistakes] == ["slo.availability", "timeout"]
    assert str(caught.value).count("\n") == 1


def test_values_that_are_invalid_together_are_reported_once_each_is_valid() -> None:
    raw = {"retry": {"initial-backoff": "x", "max-backoff": 0.01}}
    with pytest.raises(PolicyError) as caught:
        parse_policy(raw)
    assert [key for key, _problem, _fix in caught.value.mistakes] == ["retry.initial-backoff"]
    with pytest.raises(PolicyError, match=r"0\.01 is less than 'initial-backoff'"):
        parse_policy({"retry": {"max-backoff": 0.01}})


def test_a_dispatcher_takes_keys_as_in_a_descriptor() -> None:
    keys = {"timeout": 10, "rate-limit": "5/s"}
    dispatch.connect("memory://keys", policy=keys)
    assert read_policy(keys) == Policy(timeout=10, rate_limit=RateLimit("5/s"))
    with pytest.raises(PolicyError) as caught:
        dispatch.connect("memory://keys", policy={"timeout": 0, "rate-limit": "5"})
    assert [key for key, _problem, _fix in caught.value.mistakes] == ["timeout", "rate-limit"]
