from __future__ import annotations

import pickle

from dispatch.catalog import CatalogError, Problem
from dispatch.documents import MAX_PROBLEMS_PER_ITEM, Report


def test_a_problem_reads_as_file_key_problem_and_fix() -> None:
    problem = Problem("tool/a.json", "arguments[1].type", "the argument type 'str' is unknown", 'write "string"')
    assert str(problem) == (
        "tool/a.json: arguments[1].type: the argument type 'str' is unknown. Fix: write \"string\"."
    )
    assert problem.severity == "error"


def test_a_problem_of_a_whole_file_names_no_key() -> None:
    assert str(Problem("a.json", "", "empty", "fill it")) == "a.json: empty. Fix: fill it."


def test_the_error_shows_every_error_and_warning_and_keeps_the_notes() -> None:
    problems = [
        Problem("a.json", "x", "one", "correct one", "warning"),
        Problem("b.json", "y", "two", "correct two"),
        Problem("c.json", "z", "three", "correct three"),
        Problem("d.json", "n", "note", "nothing", "info"),
    ]
    error = CatalogError(problems)
    lines = str(error).splitlines()
    assert lines[0] == "The tools cannot be loaded: 2 mistakes."
    assert [line.strip() for line in lines[1:]] == [
        "b.json: y: two. Fix: correct two.",
        "c.json: z: three. Fix: correct three.",
        "Warning: a.json: x: one. Fix: correct one.",
    ]
    assert error.problems == tuple(problems)
    assert isinstance(error, ValueError)


def test_the_count_of_one_error_is_singular() -> None:
    assert str(CatalogError([Problem("a", "", "b", "c")])).startswith("The tools cannot be loaded: 1 mistake.\n")


def test_the_error_can_be_pickled() -> None:
    error = CatalogError([Problem("a", "b", "c", "d")])
    assert pickle.loads(pickle.dumps(error)).problems == error.problems


def test_of_one_key_only_the_first_error_is_kept() -> None:
    report = Report("a.json")
    report.add_error("weight", "no JSON number", "x")
    report.add_error("weight", "missing", "y")
    report.add_warning("weight", "odd", "z")
    assert [problem.problem for problem in report.problems] == ["no JSON number", "odd"]


def test_problems_beyond_the_limit_are_counted() -> None:
    report = Report("a.json")
    for index in range(MAX_PROBLEMS_PER_ITEM):
        report.add_warning(f"w{index}", "odd", "x")
    report.add_error("e", "wrong", "y")
    report.add_error("f", "wrong", "y")
    *kept, rest = report.problems
    assert len(kept) == MAX_PROBLEMS_PER_ITEM
    assert rest.problem == "2 more problems are not listed"
    assert rest.severity == "error"  # the errors among them must not get lost
