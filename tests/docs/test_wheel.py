"""The wheel in an empty environment, with the extra that the README names, runs the README and the tutorial."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import README, ROOT, TUTORIAL, Block, page_id
from tests.docs.test_code_blocks import Reader, folder, save_tutorial

__all__ = ["folder"]  # a fixture


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ``bin`` of an environment that has the wheel and nothing of the checkout."""
    path = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    run([*pip, "wheel", "--no-deps", "--wheel-dir", str(path), str(ROOT)], path)
    run([sys.executable, "-m", "venv", "--without-pip", str(path / "env")], path)
    [wheel] = path.glob("*.whl")
    run([*pip, "--python", str(path / "env" / "bin" / "python"), "install", f"{wheel}[cli]"], path)
    return path / "env" / "bin"


def run(command: list[str], cwd: Path, path: str = "") -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "DISPATCH"))}
    environment |= {"PATH": path or os.environ["PATH"], "PYTHONWARNINGS": "error" if path else "default"}
    end = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert end.returncode == 0, f"{command}\n{end.stdout}\n{end.stderr}"
    return end.stdout


class InstalledReader(Reader):
    """Runs the blocks of a page with the programs of an environment."""

    bin: Path

    def _run_python(self, block: Block) -> None:
        if block.file is None:
            self._run([str(self.bin / "python"), "-c", block.code])

    def _run_shell(self, block: Block) -> None:
        for line in block.code.splitlines():
            words = shlex.split(line, comments=True)
            if words and words[0] != "make":
                self._run([str(self.bin / words[0]), *words[1:]])

    def _run(self, command: list[str]) -> None:
        sys.stdout.write(run(command, self._folder, f"{self.bin}:/usr/bin:/bin"))


@pytest.mark.soak
@pytest.mark.parametrize("page", [README, TUTORIAL], ids=page_id)
def test_the_wheel_runs_the_readme_and_the_tutorial(
    page: Path, folder: Path, installed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if page != TUTORIAL:
        save_tutorial(folder)
    reader = InstalledReader(page, folder, capsys)
    reader.bin = installed
    reader.follow()
