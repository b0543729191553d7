"""``dispatch init``: what it does not create."""

from __future__ import annotations

from pathlib import Path

from tests.unit.cli.conftest import Run, no_room


def test_init_creates_no_file_that_would_replace_a_module_of_python(run: Run, tmp_path: Path) -> None:
    assert "'json.py' would replace the module 'json'" in run.refused("init", "json")
    assert not list(tmp_path.iterdir())


def test_a_service_that_cannot_be_created_leaves_no_folder(run: Run) -> None:
    with no_room():
        end = run("init", "shop")
    assert (end.code, end.out) == (1, "")
    assert "Error: File too large: 'shop/shop.py'.\n  fix: make room on its disk" in end.err
    run("init", "shop", code=0)
