"""Count private words in prose, and name the standard terms that replace them.

Prose is every comment and every text in a Python file (docstrings, messages, help), and a Markdown file without its fenced
blocks and code spans. Names of classes and functions do not count as prose.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Term(NamedTuple):
    """A word to avoid, the pattern that finds it as a whole word in any case, and its replacement."""

    name: str
    pattern: str
    instead: str


VOCABULARY = (
    Term("nobody", r"nobody|no one", "the thing: 'no caller', 'no instance'"),
    Term("somebody", r"somebody|someone", "the thing: 'a caller', 'a person'"),
    Term("anybody", r"anybody|anyone", "the thing: 'any caller'"),
    Term("whoever", r"whoever|whosever", "the thing: 'the caller that'"),
    Term("who has", r"who (?:has|is|was|asks|gets|waits|comes|goes|wants|needs)", "the thing: 'the caller that'"),
    Term("stranger", r"strangers?", "third-party service"),
    Term("lane", r"lanes?", "reply connection"),
    Term("room", r"rooms?", "capacity, place, permit"),
    Term("fleet", r"fleets?", "instance pool"),
    Term("of ours", r"of ours|our (?:two )?sides|our own", "dispatch's own"),
    Term("left alone", r"(?:left|leave[sd]?|leaving) (?:it |them )?alone", "circuit open, ejected, skipped"),
    Term("given up on", r"giv(?:e|es|en|ing) up on", "ejected, failed, timed out"),
    Term("sign of life", r"signs? of life", "message from the instance"),
    Term("at work", r"at work", "running"),
    Term("for now", r"for now", "the time, or nothing"),
    Term("for ever", r"for ever", "without a limit"),
    Term("looked after", r"look(?:s|ed|ing)? after", "manage, supervise"),
    Term(
        "What …",  # a sentence whose subject is a clause: "What is not sampled costs nothing"; a question is none
        r"(?-i:(?:^|(?<=[.;:] )|(?<=\n))What\b(?![^.!]*\?))",
        "the noun, as the subject",
    ),
)
_WORDS = re.compile("|".join(rf"(\b(?:{term.pattern})\b)" for term in VOCABULARY), re.IGNORECASE)
_FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
_CODE_SPAN = re.compile(r"``[^`]*``|`[^`\n]*`")


class Hit(NamedTuple):
    """One word at one place; ``line`` is where its comment or text begins, in Markdown where the word is."""

    term: str
    path: str
    line: int
    text: str


def find_words(path: str, source: str) -> list[Hit]:
    """Every word of the vocabulary in the prose of one file."""
    hits = []
    for line, text in _markdown(source) if path.endswith(".md") else _python(source):
        plain = _CODE_SPAN.sub("`…`", text)
        for found in _WORDS.finditer(plain):
            term = VOCABULARY[(found.lastindex or 1) - 1].name
            hits.append(Hit(term, path, line + plain.count("\n", 0, found.start()), found[0]))
    return hits


def _markdown(source: str) -> Iterator[tuple[int, str]]:
    blank = _FENCE.sub(lambda fence: "\n" * fence[0].count("\n"), source)
    yield from enumerate(blank.splitlines(), 1)


def _python(source: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("# ")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, re.sub(r"\n +", "\n", node.value)


def count_by_package(hits: list[Hit]) -> dict[str, Counter[str]]:
    """Hits of each package of ``dispatch`` (two parts of the path), and of each other folder (one part)."""
    counts: dict[str, Counter[str]] = {}
    for hit in hits:
        parts = Path(hit.path).parts
        folder = "/".join(parts[: 2 if parts[0] == "dispatch" else 1])
        counts.setdefault(folder, Counter())[hit.term] += 1
    return dict(sorted(counts.items()))
