"""Draw a run of ``examples/agent.py`` as a picture of a terminal: ``python -m dashboards.agent_picture``."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROOT: Final = Path(__file__).resolve().parents[1]
PICTURE: Final = ROOT / "docs" / "images" / "agent.svg"
COLUMNS: Final = 120
STYLES: Final = {"?": "cyan", "->": "bold", "<-": "green", "=": "bold green"}
"""Colours of lines by their first word; an error is yellow."""
_TEMPLATE: Final = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
    <style>
    .{unique_id}-matrix {{ font-family: monospace; font-size: {char_height}px; line-height: {line_height}px; }}
    .{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
    {styles}
    </style>
    <defs>
    <clipPath id="{unique_id}-clip-terminal">
    <rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
    </clipPath>
    {lines}
    </defs>
    {chrome}
    <g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
    {backgrounds}
    <g class="{unique_id}-matrix">
    {matrix}
    </g>
    </g>
</svg>
"""
# Rich's own template, without its fonts, which a reader would have to download.


def run_agent() -> list[str]:
    """Return the lines that the example prints, with times rounded: they differ from run to run."""
    ended = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "agent.py")], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return re.sub(r'("retry_after":\d+)\.\d+', r"\1", ended.stdout).splitlines()


def draw(lines: list[str]) -> str:
    """Return the picture as SVG."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text("$ python examples/agent.py", "bold"))
    for line in lines:
        style = "yellow" if line.startswith('<- {"error"') else STYLES.get(line.split(" ")[0], "")
        console.print(Text(line, style), soft_wrap=False)
    return console.export_svg(title="examples/agent.py", theme=MONOKAI, code_format=_TEMPLATE, unique_id="agent")


if __name__ == "__main__":
    PICTURE.write_text(draw(run_agent()), encoding="utf-8")
    sys.stdout.write(f"{PICTURE.relative_to(ROOT)}\n")
