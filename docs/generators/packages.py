"""The picture of the packages: their layers, as import-linter checks them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KINDS = {
    "people": ("#fef3c7", "#d97706", "cli devtools testing __main__"),
    "models": ("#fae8ff", "#a21caf", "adapters toolkit mcp calling results search functions trustgraph"),
    "calls and services": ("#dbeafe", "#2563eb", "dispatcher server relay calls routing serving messaging"),
    "pure cores": ("#dcfce7", "#16a34a", "protocol resilience"),
    "what may be called": ("#ffe4e6", "#e11d48", "catalog permissions announcements"),
    "seen": ("#cffafe", "#0891b2", "telemetry admin"),
}
"""Fill, border and packages of each kind; any other package is one of the values, or the border to the broker."""
OTHER = ("#f3f4f6", "#6b7280")
WIDTH, ROW, BOX, LETTER, GAP = 980, 44, 30, 7.4, 8
"""Of the picture, in pixels: LETTER is the mean width of one at a size of 13."""


def layers() -> list[list[str]]:
    """Return the names in each layer, from the top."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    return [
        [name.removeprefix("dispatch.") for name in re.split(r" [|:] ", layer)]
        for layer in config["contracts"][0]["layers"]
    ]


def packages() -> str:
    """Return the picture as SVG."""
    parts: list[str] = []
    y = 16
    for number, names in reversed(list(enumerate(reversed(layers()), 1))):
        parts.append(f'<text x="30" y="{y + 20}" text-anchor="end" fill="#9ca3af">{number}</text>')
        x = 46.0
        for name in names:
            width = len(name) * LETTER + 18
            if x + width > WIDTH - 16:
                x, y = 46.0, y + BOX + 6
            fill, border = next(
                (kind[:2] for kind in KINDS.values() if name.partition(".")[0] in kind[2].split()), OTHER
            )
            parts.append(
                f'<rect x="{x:.0f}" y="{y}" width="{width:.0f}" height="{BOX}" rx="6" fill="{fill}" stroke="{border}"/>'
                f'<text x="{x + width / 2:.0f}" y="{y + 20}" text-anchor="middle" fill="#111827">{name}</text>'
            )
            x += width + GAP
        y += ROW
    x = 46.0
    for kind, (fill, border) in {**{name: kind[:2] for name, kind in KINDS.items()}, "values, broker": OTHER}.items():
        parts.append(
            f'<rect x="{x:.0f}" y="{y + 6}" width="14" height="14" rx="3" fill="{fill}" stroke="{border}"/>'
            f'<text x="{x + 20:.0f}" y="{y + 18}" fill="#4b5563">{kind}</text>'
        )
        x += len(kind) * LETTER + 40
    title = "The packages in their layers: each imports from those below it only"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 32}" font-family="system-ui, sans-serif" '
        f'font-size="13" role="img" aria-labelledby="t">\n<title id="t">{title}</title>\n'
        f'<rect width="{WIDTH}" height="{y + 32}" rx="10" fill="#ffffff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )
