"""The required cases of JSON-Schema-Test-Suite for draft 2020-12 (tests/data/json-schema-test-suite)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dispatch.schemas import InvalidSchemaError, SchemaValidator, find_outside_references, find_schema_problems

CASES: dict[str, list[dict[str, Any]]] = json.loads(
    (Path(__file__).parents[2] / "data" / "json-schema-test-suite" / "draft2020-12.json").read_text("utf-8")
)
GROUPS = [(file, group) for file, groups in CASES.items() for group in groups]
REMOTE = [(file, group) for file, group in GROUPS if find_outside_references(group["schema"])]
"""Groups whose schema refers to another document: they are refused, because nothing is fetched for a schema."""
LOCAL = [each for each in GROUPS if each not in REMOTE]


def test_the_suite_is_complete() -> None:
    assert (len(CASES), len(GROUPS)) == (46, 383)
    assert sum(len(group["tests"]) for _, group in GROUPS) == 1299


@pytest.mark.parametrize("file", CASES)
def test_required_cases(file: str) -> None:
    wrong = []
    for of, group in LOCAL:
        if of == file:
            validator = SchemaValidator(group["schema"])
            wrong += [
                (group["description"], test["description"])
                for test in group["tests"]
                if (validator.find_mistakes(test["data"]) == ()) != test["valid"]
            ]
    assert wrong == []


def test_every_schema_of_the_suite_is_a_schema() -> None:
    assert [group["description"] for _, group in LOCAL if find_schema_problems(group["schema"])] == []


def test_references_to_other_documents_are_refused() -> None:
    for _, group in REMOTE:
        assert "localhost:1234" in json.dumps(group["schema"])
        assert find_schema_problems(group["schema"])
        with pytest.raises(InvalidSchemaError, match="nothing is fetched"):
            SchemaValidator(group["schema"])
    by_file = {file: sum(of == file for of, _ in REMOTE) for file, _ in REMOTE}
    assert by_file == {"dynamicRef": 5, "refRemote": 15, "vocabulary": 2}


def test_values_of_invalid_cases_have_mistakes_with_places_in_them() -> None:
    for _, group in LOCAL:
        validator = SchemaValidator(group["schema"])
        for test in group["tests"]:
            for mistake in validator.find_mistakes(test["data"]):
                assert mistake.path == "" or mistake.path.startswith("/")
                assert mistake.message
                assert str(mistake)
