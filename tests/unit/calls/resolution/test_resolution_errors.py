from __future__ import annotations

from dispatch.calls.error_messages import (
    error_from_invalid_range,
    error_from_requirement,
    error_from_unknown_name,
    error_from_version_mismatch,
)
from dispatch.catalog import UnknownServiceError, UnknownToolError


def test_an_unknown_name_is_answered_with_the_nearest_and_the_known_ones() -> None:
    near = error_from_unknown_name(UnknownToolError("jok", ("joke",), ("joke", "story")))
    assert (near.type, near.rejected_by, near.alternatives) == ("unknown-tool", "catalog", ("joke",))
    assert "there is no tool 'jok'. Call 'joke' if you meant that" in near.message
    assert "joke, story" in near.message
    far = error_from_unknown_name(UnknownToolError("x", (), ("joke",)))
    assert far.message.endswith("Call one of these: joke.")
    empty = error_from_unknown_name(UnknownServiceError("x"))
    assert (empty.type, empty.alternatives) == ("unknown-service", ())
    assert empty.message.endswith("Report that no tool services are loaded.")


def test_a_version_mismatch_names_the_range_and_the_versions() -> None:
    error = error_from_version_mismatch("joke", "^3", ("2.0.0", "1.4.0"))
    assert (error.type, error.rejected_by, error.retryable) == ("version-mismatch", "catalog", False)
    assert "none of its versions satisfies '^3', there are 2.0.0, 1.4.0. Call one of these" in error.message
    undeclared = error_from_version_mismatch("joke", "*", ())
    assert undeclared.message.endswith("no version is declared for it. Call it without a version.")


def test_a_requirement_names_the_service_and_its_versions() -> None:
    error = error_from_requirement("joke", "lab", "^2", ("1.0.0",))
    assert (error.type, error.rejected_by, error.retryable) == ("version-mismatch", "catalog", False)
    assert "it requires version '^2' of 'lab', and there are 1.0.0." in error.message
    balanced = error_from_requirement("joke", "lab", "^2", (), by="balancer")
    assert (balanced.rejected_by, balanced.retryable) == ("balancer", True), "an instance may be started"
    assert "no version is declared" in balanced.message


def test_a_text_that_is_no_range_is_a_mistake_of_the_caller() -> None:
    error = error_from_invalid_range("joke", "'latest' is not a version range: cannot read 'latest'")
    assert (str(error.outcome), error.type, error.retryable) == ("invalid_arguments", "invalid-arguments", False)
    assert error.message.endswith("cannot read 'latest'. Correct 'version', or leave it out.")
