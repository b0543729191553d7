"""The end of ``make mutation``: a survivor is open unless just this change of just this function is explained."""

from __future__ import annotations

import pytest

from tests.helpers.mutation_report import DOCS, Mutant, Mutation, explained, mutation, summary

PAGE = """# Mutation testing

| module | killed |
|---|---|
| `some.py` | 12 |

### `dispatch/guards/some.py`

| function | mutation | why |
|---|---|---|
| `Some.method` | `if a > b:` → `if a >= b:` | the same when they are equal |
| `function` | `x = a \\| b` → `x = a & b` | there is no other bit |
"""
DIFF = """--- dispatch/guards/some.py
+++ dispatch/guards/some.py
@@ -1,3 +1,3 @@
 def method(self):
-    if a > b:  # why
+    if a >= b:  # why
         pass
"""
KNOWN = Mutation("dispatch.guards.some", "Some.method", "if a >= b:")


def test_a_page_explains_what_its_tables_say() -> None:
    assert explained(PAGE) == {KNOWN, Mutation("dispatch.guards.some", "function", "x = a & b")}


def test_a_mutant_is_told_by_its_function_and_its_changed_line() -> None:
    assert mutation("dispatch.guards.some.xǁSomeǁmethod__mutmut_12", DIFF) == KNOWN
    assert mutation("dispatch.guards.some.x_function__mutmut_1", "") == KNOWN._replace(function="function", new="")


@pytest.mark.parametrize(
    ("status", "mutation", "is_open"),
    [
        ("killed", KNOWN._replace(new=""), False),
        ("timeout", KNOWN._replace(new=""), False),
        ("survived", KNOWN, False),
        ("survived", KNOWN._replace(function="Some.other"), True),
        ("survived", KNOWN._replace(new="if a == b:"), True),
        ("no tests", KNOWN._replace(module="dispatch.guards.other"), True),
        ("not checked", KNOWN._replace(new=""), True),
    ],
)
def test_what_is_neither_caught_nor_explained_is_open(status: str, mutation: Mutation, is_open: bool) -> None:
    mutant = Mutant("a name", status, mutation, "")
    rows, open_ones = summary([mutant], {KNOWN})
    assert open_ones == [mutant] * is_open
    caught = status in ("killed", "timeout")
    assert rows[-1].split() == [
        "all",
        "1",
        *(str(int(each)) for each in (status == "killed", status == "timeout", not caught and not is_open, is_open)),
    ]


def test_the_page_names_modules_that_exist() -> None:
    known = explained(DOCS.read_text("utf-8"))
    assert known
    root = DOCS.absolute().parents[2]
    assert all((root / (each.module.replace(".", "/") + ".py")).exists() for each in known)
