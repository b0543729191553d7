"""A broken link or reference fails the build of the site; `make docs` builds the whole of it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.generators.extension import REPOSITORY, link_repository
from tests.docs.pages import ROOT
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
