"""examples/policies.json, which lists every option, says what the code says; examples/policy.json can be used as it is."""

from __future__ import annotations

import inspect
import json
import re
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from dispatch.catalog import load_directory
from dispatch.cli import main
from dispatch.cli.check import USER, plan_of
from dispatch.policy import (
    DEFAULT_POLICY,
    Balancing,
    Breaker,
    Bulkhead,
    OutlierDetection,
    Policy,
    PolicyError,
    RateLimit,
    Retry,
    Slo,
    parse_policy,
)
from tests.examples.conftest import EXAMPLES, TOOLS

OPTIONS: dict[str, Any] = json.loads((EXAMPLES / "policies.json").read_text())["options"]
PAGE = (EXAMPLES.parent / "docs" / "how-to" / "choose-a-policy.md").read_text()
PARTS: dict[str, type[msgspec.Struct]] = {
    "retry": Retry,
    "breaker": Breaker,
    "bulkhead": Bulkhead,
    "rate-limit": RateLimit,
    "user-rate-limit": RateLimit,
    "shared-user-rate-limit": RateLimit,
    "balancing": Balancing,
    "outlier-detection": OutlierDetection,
    "slo": Slo,
}
SAME_KEYS = ("user-rate-limit", "shared-user-rate-limit")
"""Their keys stand at ``rate-limit``."""
UNITS = {
    *(
        "seconds",
        "bytes",
        "characters",
        "share",
        "calls",
        "attempts",
        "failures",
        "rounds",
        "instances",
        "connections",
        "chunks",
    ),
    *("repeats a second", "standard deviations", "factor", "name", "names", "weights by user", "true or false"),
    *("percentile, or seconds", "calls/s, /m, /h or /d", "calls/day or /month"),
}


def docstrings(kind: type) -> dict[str, str]:
    """What the docstring of ``kind`` says of each attribute."""
    said: dict[str, str] = {}
    name = ""
    for line in (inspect.getdoc(kind) or "").partition("Attributes:\n")[2].splitlines():
        begins = re.fullmatch(r" {4}(\w+): (.*)", line)
        if begins:
            name, said[begins[1]] = begins[1], begins[2]
        elif line.startswith(" " * 8):
            said[name] += " " + line.strip()
    return said


def in_json(text: str) -> str:
    """A docstring's text, with the names and values that JSON has for Python's."""
    text = re.sub(r":class:`(\w+)`", lambda found: f"'{found[1].lower()}'", text)
    text = re.sub(r'``"?([^`]+?)"?``', lambda found: f"'{found[1].replace('_', '-')}'", text).replace("*", "")
    for python, name in (("None", "null"), ("False", "false"), ("True", "true")):
        text = re.sub(rf"\b{python}\b", name, text)
    return text


def options() -> list[tuple[str, type[msgspec.Struct], str, Any]]:
    """Each option: where it stands, of which class it is a field, the field, what the file says."""
    found: list[tuple[str, type[msgspec.Struct], str, Any]] = []
    for key, entry in OPTIONS.items():
        found.append((key, Policy, key.replace("-", "_"), entry))
        if key in PARTS and key not in SAME_KEYS:
            found += [(f"{key}.{name}", PARTS[key], name.replace("-", "_"), of) for name, of in entry["keys"].items()]
    return found


EACH = pytest.mark.parametrize(("key", "kind", "field", "entry"), options(), ids=[each[0] for each in options()])


def test_no_option_is_missing_and_none_is_unknown() -> None:
    assert list(OPTIONS) == list(Policy.__struct_encode_fields__)
    for key, kind in PARTS.items():
        if key in SAME_KEYS:
            assert OPTIONS[key]["keys"] == "as for 'rate-limit'"
        else:
            assert list(OPTIONS[key]["keys"]) == list(kind.__struct_encode_fields__)


@EACH
def test_the_default_is_that_of_the_code(key: str, kind: type[msgspec.Struct], field: str, entry: Any) -> None:
    if key in PARTS:
        assert entry["default"] == ("off" if getattr(DEFAULT_POLICY, field) is None else "on")
        return
    if key == "rate-limit.rate":
        assert "default" not in entry
        assert entry["required"] is True
        return
    value = msgspec.structs.fields(kind)[kind.__struct_fields__.index(field)].default
    if isinstance(value, tuple):
        value = dict(value) if key == "rate-limit.weights" else list(value)
    assert entry["default"] == value
    assert isinstance(entry["default"], bool) == isinstance(value, bool)  # 1 == True


@EACH
def test_meaning_and_reason_are_those_of_the_docstring(
    key: str, kind: type[msgspec.Struct], field: str, entry: Any
) -> None:
    assert entry["meaning"]
    assert entry["reason"]
    assert f"{entry['meaning']} {entry['reason']}" == in_json(docstrings(kind)[field])


@EACH
def test_nothing_else_is_said_and_the_unit_is_a_known_one(
    key: str, kind: type[msgspec.Struct], field: str, entry: Any
) -> None:
    if key in PARTS:
        assert set(entry) - {"short"} == {"default", "meaning", "reason", "keys"}
        return
    assert set(entry) == {"required" if key == "rate-limit.rate" else "default", "unit", "meaning", "reason"}
    assert entry["unit"] in UNITS
    assert (entry["unit"] == "true or false") == isinstance(entry.get("default"), bool)


@pytest.mark.parametrize("part", [key for key in PARTS if "short" in OPTIONS[key]])
def test_what_stands_for_a_part_is_understood(part: str) -> None:
    policy = parse_policy({part: OPTIONS[part]["short"]})
    assert isinstance(getattr(policy, part.replace("-", "_")), PARTS[part])


@pytest.mark.parametrize("part", ["breaker", "outlier-detection"])
def test_a_part_without_a_short_form_has_none(part: str) -> None:
    assert "short" not in OPTIONS[part]
    with pytest.raises(PolicyError, match=f"'{part}'"):
        parse_policy({part: 3})


def test_the_defaults_written_out_are_the_default_policy() -> None:
    written = {key: entry["default"] for key, _, _, entry in options() if key not in PARTS and "." not in key}
    for part in PARTS:
        if OPTIONS[part]["default"] == "on":
            written[part] = {name: entry["default"] for name, entry in OPTIONS[part]["keys"].items()}
    assert parse_policy(written) == DEFAULT_POLICY


@pytest.mark.usefixtures("own_logging")
def test_the_policy_to_copy_is_accepted_by_check(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["check", str(TOOLS), "--policy", str(EXAMPLES / "policy.json"), "--json"])
    said = json.loads(capsys.readouterr().out)
    assert (code, said["problems"]) == (0, [])
    assert len(said["plan"]) == said["tools"]
    for plan in said["plan"]:
        users = {row["key"] for row in plan["rows"] if row["source"] == USER and not row["without_effect"]}
        assert {
            "timeout",
            "hedging",
            "rate-limit.burst",
            "balancing.strategy",
            "outlier-detection.consecutive-failures",
        } <= users


@pytest.mark.parametrize("written", re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL))
def test_the_policies_of_the_page_are_accepted(written: str) -> None:
    assert parse_policy(json.loads(written)) != DEFAULT_POLICY


def test_the_page_lists_every_part_that_null_switches_off() -> None:
    listed = re.findall(r"^\| (`.+?`) \|", PAGE.partition("| `null` for |")[2].partition("\n\n")[0], re.MULTILINE)
    off = set()
    for key in Policy.__struct_encode_fields__:
        with suppress(PolicyError):
            parse_policy({key: None})
            off.add(key)
    assert set(re.findall(r"`([a-z-]+)`", " ".join(listed))) == off - {"attempt-timeout"}


def test_each_part_of_the_policy_to_copy_is_in_force_for_the_examples() -> None:
    raw = json.loads((EXAMPLES / "policy.json").read_text())
    catalog = load_directory(TOOLS)
    for name in catalog.tools:
        plan = plan_of(catalog, name, user=raw)
        written = [row for row in plan.rows if row.source == USER]
        assert {row.key.partition(".")[0] for row in written} == set(raw)
        assert not [row for row in written if row.without_effect]
