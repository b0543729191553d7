"""Errors: what callers written for TrustGraph catch, what travels between processes, what a model reads."""

from __future__ import annotations

import ast
import copy
import itertools
import pickle
import re
from pathlib import Path

import pytest

from dispatch import errors
from dispatch.errors import (
    CallTimeoutError,
    DispatchError,
    InvalidArgumentsError,
    Outcome,
    RejectedError,
    ThrottledError,
    ToolError,
    TransportError,
)

ERRORS = [
    DispatchError("odd", "Odd."),
    ToolError("ValueError", "No such city."),
    InvalidArgumentsError("invalid-arguments", "Not an object.", rejected_by="service"),
    ThrottledError("overloaded", "Not before 12 s.", retryable=True, retry_after=12.0, rejected_by="service"),
    CallTimeoutError("No answer within 5 s.", limit_name="stream-idle", retryable=True),
    CallTimeoutError("No answer.", limit_name="call", type="expired"),
    TransportError("unreachable", "No broker.", may_have_run=False, retry_after=0.5),
    TransportError("connection-lost", "Gone."),
    RejectedError("unknown-tool", "No such tool.", rejected_by="catalog", alternatives=("tell-joke", "tell-story")),
]
each = pytest.mark.parametrize("error", ERRORS, ids=lambda e: f"{type(e).__name__}-{e.type}")


@each
@pytest.mark.parametrize(
    "copied",
    [lambda e: pickle.loads(pickle.dumps(e)), lambda e: pickle.loads(pickle.dumps(e, 2)), copy.copy, copy.deepcopy],
    ids=["pickle", "pickle-2", "copy", "deepcopy"],
)
def test_an_error_survives_the_way_to_another_process(error: DispatchError, copied: object) -> None:
    twin = copied(error)  # type: ignore[operator]
    assert type(twin) is type(error)
    assert vars(twin) == vars(error)
    assert str(twin) == str(error) == error.message
    assert (twin.args, twin.as_dict()) == (error.args, error.as_dict())


@each
def test_every_error_is_the_runtime_error_that_trustgraphs_client_raises(error: DispatchError) -> None:
    with pytest.raises(RuntimeError) as caught:
        raise error
    assert str(caught.value) == error.message


def test_a_timeout_is_also_a_timeout_error_and_others_are_not() -> None:
    for error in ERRORS:
        assert isinstance(error, TimeoutError) == isinstance(error, CallTimeoutError)
    with pytest.raises(TimeoutError):
        raise ERRORS[4]
    assert ERRORS[4].errno is None  # type: ignore[attr-defined] # it is no error of the operating system


@pytest.mark.parametrize(
    ("cls", "outcome"),
    [
        (ToolError, Outcome.TOOL_ERROR),
        (InvalidArgumentsError, Outcome.INVALID_ARGUMENTS),
        (ThrottledError, Outcome.THROTTLED),
        (CallTimeoutError, Outcome.TIMEOUT),
        (TransportError, Outcome.TRANSPORT),
        (RejectedError, Outcome.REJECTED),
    ],
)
def test_each_class_has_its_outcome(cls: type[DispatchError], outcome: Outcome) -> None:
    assert cls.outcome is outcome


def test_the_outcomes_are_the_one_vocabulary() -> None:
    names = ("success", "tool_error", "invalid_arguments", "throttled", "timeout", "transport", "cancelled", "rejected")
    assert {str(outcome) for outcome in Outcome} == {*names}


def test_as_dict_has_what_a_machine_needs() -> None:
    assert ERRORS[8].as_dict() == {
        "outcome": "rejected",
        "type": "unknown-tool",
        "message": "No such tool.",
        "retryable": False,
        "retry_after": None,
        "rejected_by": "catalog",
        "alternatives": ["tell-joke", "tell-story"],
    }
    assert ERRORS[3].as_dict()["retry_after"] == 12.0


def test_a_transport_error_may_be_repeated_only_if_nothing_left() -> None:
    assert TransportError("x", "x", may_have_run=False).retryable
    assert not TransportError("x", "x", may_have_run=True).retryable
    assert TransportError("x", "x").may_have_run, "in doubt it left"


def test_a_tool_author_needs_two_texts_only() -> None:
    error = ToolError("no-such-city", "There is no city of that name.")
    assert (error.type, error.message, error.retryable) == ("no-such-city", "There is no city of that name.", False)


def test_a_message_that_is_no_text_becomes_one() -> None:
    class Unreadable:
        def __str__(self) -> str:
            raise LookupError

    assert ToolError("no-such-city", {"city": "Atlantis"}).message == "{'city': 'Atlantis'}"  # type: ignore[arg-type]
    error = ToolError(404, Unreadable())  # type: ignore[arg-type]
    assert (error.type, error.message) == ("404", "(the text of a Unreadable cannot be read)")
    assert str(error) == error.message


def test_a_timeout_names_its_clock_and_is_not_repeated_unless_that_is_said() -> None:
    error = CallTimeoutError("No answer.", limit_name="attempt")
    assert (error.type, error.limit_name, error.retryable) == ("attempt-timeout", "attempt", False)
    assert CallTimeoutError("No answer.", limit_name="call", retryable=True).retryable


def test_repr_shows_class_type_and_message() -> None:
    assert repr(ERRORS[1]) == "ToolError(type='ValueError', message='No such city.')"


def test_every_meaning_is_one_sentence_that_says_whether_the_tool_was_executed() -> None:
    for type, meaning in error_meanings().items():
        assert re.fullmatch(r"[A-Z][^.]*\.", meaning), type
        assert re.search(r"tool (was|was not|may have been) executed|no tool was executed", meaning), type


def error_meanings() -> dict[str, str]:
    """Each error type with its docstring: enumerations keep none at run time."""
    tree = ast.parse(Path(errors.__file__).read_text())
    (body,) = (node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "ErrorType")
    found = {}
    for member, doc in itertools.pairwise(body):
        if isinstance(member, ast.Assign) and isinstance(member.value, ast.Constant) and isinstance(doc, ast.Expr):
            assert isinstance(doc.value, ast.Constant)
            found[str(member.value.value)] = " ".join(str(doc.value.value).split()).replace("``", "`")
    assert set(found) == set(errors.ErrorType)
    return found
