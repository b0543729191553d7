"""``python -m benchmarks.figures``: size and shape of ``dispatch/``, and the files that one warm call runs through.

Code lines are those without docstrings, comments and blanks. The walk counts the files of ``dispatch/`` whose code the
process of the caller runs in the third call of a tool on the embedded broker (``sys.setprofile``); service and caller share
that process, so that the files of ``serving`` and the callee's part are left out. ``--json`` prints all of it for machines.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import io
import json
import sys
import tokenize
from pathlib import Path
from types import FrameType
from typing import Any

import grimp

import dispatch

ROOT = Path(dispatch.__file__).parent
SMALL = 60
"""Code lines below which a file needs a reason."""
_BLANK = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
_SERVICE = ("serving/", "transports/memory.py")


def lines_of(nodes: list[ast.stmt]) -> set[int]:
    return {line for node in nodes for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}


def count_lines(source: str) -> tuple[int, int]:
    """Return the code lines of a file, and those of them that import."""
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _BLANK:
            code.update(range(token.start[0], token.end[0] + 1))
    nodes = list(ast.walk(ast.parse(source)))
    texts = [n for n in nodes if isinstance(n, ast.Expr) and isinstance(getattr(n.value, "value", None), str)]
    code -= lines_of(list(texts))
    imports = lines_of([n for n in nodes if isinstance(n, ast.Import | ast.ImportFrom)])
    return len(code), len(code & imports)


def measure_size(root: Path) -> dict[str, Any]:
    counts = {path: count_lines(path.read_text("utf-8")) for path in sorted(root.rglob("*.py"))}
    code = sum(lines for lines, _ in counts.values())
    small = [str(path.relative_to(root)) for path, (lines, _) in counts.items() if lines < SMALL]
    return {
        "files": len(counts),
        "code lines": code,
        "code lines per file": round(code / len(counts)),
        "share of imports": round(sum(imports for _, imports in counts.values()) / code, 3),
        f"files below {SMALL} code lines": len(small),
        "of them __init__": sum(path.endswith("__init__.py") for path in small),
    }


def count_cycles() -> list[list[str]]:
    """Return the cycles of modules, imports for types and inside functions included: its strongly connected components."""
    graph = grimp.build_graph("dispatch", cache_dir=None)
    reach = {module: graph.find_downstream_modules(module) for module in graph.modules}
    found = {frozenset({a, *(b for b in reach[a] if a in reach[b])}) for a in reach}
    return sorted(sorted(component) for component in found if len(component) > 1)


async def walk_call() -> list[str]:
    class Echo(dispatch.ToolService):
        async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> str:
            return "done"

    topics = {
        "request-queue": "non-persistent://tg/request/echo",
        "response-queue": "non-persistent://tg/response/echo",
    }
    catalog = dispatch.Catalog.of(
        [{"id": "echo", **topics}],
        [{"type": "tool-service", "name": "echo", "description": "Echoes.", "service": "echo"}],
    )
    files: dict[str, None] = {}

    def profile(frame: FrameType, event: str, _argument: Any) -> None:
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(str(ROOT)):
            files.setdefault(path.removeprefix(f"{ROOT}/"))

    async with (
        dispatch.ToolServer(Echo(), "memory://figures", service="echo"),
        dispatch.connect("memory://figures", catalog=catalog) as dispatcher,
    ):
        for _ in range(2):
            await dispatcher.call("echo")
        sys.setprofile(profile)
        try:
            await dispatcher.call("echo")
        finally:
            sys.setprofile(None)
    return [path for path in files if not path.startswith(_SERVICE)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.figures", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    walked = asyncio.run(walk_call())
    figures = {**measure_size(ROOT), "cycles": count_cycles(), "files of a warm call": len(walked), "walk": walked}
    if options.json:
        sys.stdout.write(json.dumps(figures, indent=2) + "\n")
        return
    figures["code lines of tests"] = measure_size(ROOT.parent / "tests")["code lines"]
    for name, value in figures.items():
        text = "\n    ".join(["", *map(str, value)]) if isinstance(value, list) else f"{value:,}"
        sys.stdout.write(f"{name}: {text}\n")


if __name__ == "__main__":
    main()
