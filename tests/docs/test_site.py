"""A broken link or reference fails the build of the site; `make docs` builds the whole of it.
The wheel in an empty environment, with the extra that the README names, runs the README and the tutorial.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from docs.generators.extension import REPOSITORY, link_repository
from tests.docs.pages import README, ROOT, TUTORIAL, Block, page_id
from tests.docs.test_code_blocks import Reader, folder, save_tutorial
from tests.helpers.python_processes import environment

PAGE = ROOT / "docs" / "how-to" / "x.md"
BROKEN = {
    "[x](missing.md)": "missing.md",
    "[x](other.md#missing-heading)": "missing-heading",
    "{py:class}`dispatch.Missing`": "dispatch.Missing",
    "![x](missing.png)": "missing.png",
}


def test_broken_links_and_references_fail_the_build_and_pages_need_no_network(tmp_path: Path) -> None:
    source, site = tmp_path / "source", tmp_path / "site"
    source.mkdir()
    (source / "index.md").write_text("# x\n\n:::{toctree}\nother\n:::\n\n" + "\n\n".join(BROKEN), encoding="utf-8")
    (source / "other.md").write_text("# Other\n\n{py:class}`dispatch.Policy`\n", encoding="utf-8")
    options = ["-q", "-W", "--keep-going", "-b", "html", "-c", str(ROOT / "docs"), "-d", str(tmp_path / "doctrees")]
    end = subprocess.run(
        [sys.executable, "-m", "sphinx", *options, str(source), str(site)],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert end.returncode != 0
    for mistake in BROKEN.values():
        assert mistake in end.stderr
    assert "dispatch.Policy" not in end.stderr  # it exists, and has no entry in these pages
    loaded = re.findall(r"<(?:script|link|img)[^>]*(?:src|href)=\"([^\"]+)", (site / "index.html").read_text("utf-8"))
    assert loaded
    assert not [address for address in loaded if address.startswith(("http", "//"))]


def test_a_link_that_leaves_the_pages_leads_to_the_repository() -> None:
    text = "[a](../../examples/policy.json#x) [b](../architecture.md#glossary) [c](https://example.org/a/b)"
    expected = f"[a]({REPOSITORY}examples/policy.json#x) [b](../architecture.md#glossary) [c](https://example.org/a/b)"
    assert link_repository(text, PAGE) == expected
    with pytest.raises(FileNotFoundError, match="missing"):
        link_repository("[a](../../examples/missing.json)", PAGE)


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
