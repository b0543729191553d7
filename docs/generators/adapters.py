"""What a model gets in each scenario by way of each adapter, as the tests of the adapters have recorded it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from dispatch.adapters import FRAMEWORKS, Style

RESULTS: Final = Path(__file__).resolve().parents[2] / "tests" / "adapters" / "results.json"


def adapter_results() -> str:
    """Return the table: scenarios, and a column for ``execute`` and each framework.

    Raises:
        ValueError: the styles of ``execute`` differ.
    """
    results: dict[str, dict[str, str]] = json.loads(RESULTS.read_text("utf-8"))
    native = {json.dumps(results[style], sort_keys=True) for style in Style}
    if len(native) != 1:
        raise ValueError("the styles of execute give different results; give each a column")
    columns = {"`execute`": results[Style.OPENAI_CHAT], **{f"`{name}`": results[name] for name in FRAMEWORKS}}
    rows = [("scenario", *columns), ("---",) * (len(columns) + 1)]
    scenarios = results[Style.OPENAI_CHAT]
    rows += [(name.replace("_", " "), *(column[name] for column in columns.values())) for name in scenarios]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)
