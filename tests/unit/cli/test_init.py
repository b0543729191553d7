"""The entry point: with and without what it needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.cli_processes import ended
from tests.helpers.python_processes import finish
from tests.unit.cli.conftest import Run


@pytest.mark.parametrize("missing", ["typer", "rich", "msgspec"])
def test_without_the_extra_it_names_the_command_that_installs_it(missing: str) -> None:
    program = f"import sys; sys.modules['{missing}'] = None; from dispatch.cli import main; sys.exit(main(['tools']))"
    end = finish("-c", program)
    assert end.returncode == 2
    where = "a" if missing == "msgspec" else "this"
    assert end.stderr == (
        f"dispatch: the command line requires the package '{missing}': pip install 'tool-dispatch[cli]' "
        f"(in {where} checkout: pip install -e '.[cli]')\n"
    )
    assert end.stdout == ""


def test_importing_dispatch_imports_no_part_of_the_command_line() -> None:
    packages = "'typer', 'rich', 'pulsar', 'dispatch.cli'"
    end = finish("-c", f"import sys, dispatch; print([m for m in ({packages}) if m in sys.modules])")
    assert (end.returncode, end.stdout) == (0, "[]\n")


def test_help_imports_neither_the_broker_client_nor_what_single_commands_need() -> None:
    program = (
        "import sys; from dispatch.cli import main; main(['--help']); "
        "heavy = 'pulsar', 'dispatch.devtools.localbroker', 'dispatch.devtools.demo', 'rich.live'; "
        "print([m for m in heavy if m in sys.modules])"
    )
    end = finish("-c", program)
    assert (end.returncode, end.stdout.endswith("[]\n")) == (0, True)


def test_python_m_dispatch_is_the_command(tmp_path: Path) -> None:
    code, out, err = ended("--version", cwd=tmp_path)
    assert (code, err) == (0, "")
    assert out.startswith("dispatch ")


def test_without_a_command_it_teaches(run: Run) -> None:
    end = run(code=2)
    for command in ("demo", "call", "tools", "check", "serve", "bench", "doctor", "broker"):
        assert command in end.out


def test_help_tells_the_exit_codes(run: Run) -> None:
    text = " ".join(run("--help", code=0).out.split())
    for part in ("0 success", "3 timeout", "4 transport", "5 throttled or rejected", "130 interrupted"):
        assert part in text
