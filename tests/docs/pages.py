"""The pages of the documentation, and their code blocks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
TUTORIAL = ROOT / "docs" / "tutorial" / "first-call.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
NOT_RUN = re.compile(r"<!-- not run: (.{10,}) -->")
FILE_NAME = re.compile(r"`([\w/.-]+\.(?:py|json))`:$")
EXPECTED = "It prints:"


@dataclass(frozen=True)
class Block:
    """A fenced block of a page.

    Attributes:
        file: name under which the page tells the reader to save the block; None without one.
        reason: why the block is not run; None if it is run.
        expected: the block is the output of the block before it.
    """

    page: Path
    line: int
    language: str
    code: str
    file: str | None
    reason: str | None
    expected: bool

    def __str__(self) -> str:
        return f"{page_id(self.page)}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    """Yield the fenced blocks of a page."""
    lines = page.read_text(encoding="utf-8").splitlines()
    number = 0
    while number < len(lines):
        opened = re.fullmatch(r"( *)```(\w*)", lines[number])
        if opened is None:
            number += 1
            continue
        before = next((line.strip() for line in reversed(lines[:number]) if line.strip()), "")
        reason = NOT_RUN.fullmatch(before)
        name = FILE_NAME.search(before)
        end = lines.index(f"{opened[1]}```", number + 1)
        code = "\n".join(line[len(opened[1]) :] for line in lines[number + 1 : end]) + "\n"
        yield Block(
            page, number + 1, opened[2], code, name and name[1], reason and reason[1], before.endswith(EXPECTED)
        )
        number = end + 1


def prose(page: Path) -> str:
    """Return the text of a page without its fenced blocks."""
    return re.sub(r"^( *)```.*?^\1```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def page_id(page: Path) -> str:
    """Return the path of a page, for names of tests."""
    return str(page.relative_to(ROOT)) if page.is_relative_to(ROOT) else page.name
