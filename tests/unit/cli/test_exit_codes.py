"""Exit codes and texts of errors."""

from __future__ import annotations

import pytest

from dispatch.cli.base import CliError, Exit, exit_code_of, report_error
from dispatch.devtools.localbroker import LocalBrokerUnavailableError
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

ERRORS: list[tuple[DispatchError, int]] = [
    (ToolError("no-joke", "nothing funny"), 1),
    (InvalidArgumentsError("invalid-arguments", "no object"), 2),
    (RejectedError("unknown-tool", "no such tool"), 2),
    (CallTimeoutError("too late", limit_name="call"), 3),
    (TransportError("unreachable", "no broker"), 4),
    (TransportError("bad-address", "no address"), 2),
    (ThrottledError("overloaded", "too much", retry_after=1.5), 5),
    (RejectedError("draining", "shutting down", rejected_by="service"), 5),
]


@pytest.mark.parametrize(("error", "code"), ERRORS, ids=lambda value: getattr(value, "type", None))
def test_each_outcome_has_its_exit_code(error: DispatchError, code: int) -> None:
    assert exit_code_of(error) == code


def test_success_is_0_and_every_outcome_is_covered() -> None:
    assert exit_code_of(None) == 0
    for outcome in Outcome:
        error = DispatchError("type", "message")
        error.outcome = outcome
        assert isinstance(exit_code_of(error), Exit)


def test_the_error_of_a_call_names_message_outcome_and_type(capsys: pytest.CaptureFixture[str]) -> None:
    code = report_error(
        ThrottledError("overloaded", "Too much.", retry_after=1.5, rejected_by="service"), verbose=False
    )
    assert code == 5
    assert capsys.readouterr().err == (
        "Error: Too much.\n  outcome throttled · type overloaded · rejected by service · retry after 1.5 s\n"
    )


def test_a_services_text_cannot_act_on_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    report_error(ToolError("\x1b[2J", "\x1b]0;title\x07"), verbose=False)
    assert "\x1b" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (CliError("Wrong.", "do it right"), 2, "Error: Wrong.\n  fix: do it right\n"),
        (LocalBrokerUnavailableError(["no java"], "Install it."), 1, "no java.\nInstall it."),
        (PermissionError(13, "Permission denied", "file"), 1, "Permission denied: 'file'"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_expected_errors_are_messages(
    error: Exception, code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report_error(error, verbose=False) == code
    written = capsys.readouterr().err
    assert text in written
    assert "Traceback" not in written
