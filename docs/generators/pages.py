"""Writes what repeats the code into the pages: ``python -m docs.generators.pages``, which ``make docs`` runs first.

``<!-- generated: NAME -->`` in a page, up to ``<!-- end -->``, has the output of ``GENERATORS[NAME]``. So the tables are
read on a code host as on the site; a test fails where a page differs from the code.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

from docs.generators import (
    adapters,
    alerts,
    command_line,
    constants,
    dashboards,
    metrics,
    packages,
    policy_keys,
    protocol,
)

DOCS = Path(__file__).resolve().parents[1]
GENERATORS: dict[str, Callable[[], str]] = {
    "adapter-results": adapters.adapter_results,
    "alerts": alerts.alerts,
    "command-line": command_line.command_line,
    "dashboards": dashboards.dashboards,
    "error-types": constants.error_types,
    "exceptions": constants.exceptions,
    "features": constants.features,
    "message-properties": constants.message_properties,
    "metrics": metrics.metrics,
    "origins": constants.origins,
    "outcomes": constants.outcomes,
    "policy-keys": policy_keys.policy_keys,
    "protocol-failures": protocol.failures,
    "protocol-frames": protocol.frames,
    "protocol-packet": protocol.packet,
    "protocol-settings": protocol.settings,
    "refusals": constants.refusals,
}
PICTURES: dict[str, Callable[[], str]] = {"images/packages.svg": packages.packages}
"""Written as they are, by path in ``docs/``."""
MARKER = re.compile(r"^<!-- generated: ([\w-]+) -->\n(?:(?:(?!<!-- generated: ).*\n)*?<!-- end -->\n)?", re.MULTILINE)


def generate(text: str) -> str:
    """Return the text of a page with what each marker names behind it."""
    return MARKER.sub(
        lambda found: f"<!-- generated: {found[1]} -->\n\n{GENERATORS[found[1]]().strip()}\n\n<!-- end -->\n", text
    )


def changed() -> dict[Path, str]:
    """Return the new text of each page and picture that differs from the code."""
    files = {DOCS / name: make() for name, make in PICTURES.items()}
    files |= {page: generate(page.read_text("utf-8")) for page in sorted(DOCS.rglob("*.md"))}
    return {file: text for file, text in files.items() if not file.exists() or file.read_text("utf-8") != text}


if __name__ == "__main__":
    for file, text in changed().items():
        file.write_text(text, "utf-8")
        sys.stdout.write(f"written: {file.relative_to(DOCS.parent)}\n")
