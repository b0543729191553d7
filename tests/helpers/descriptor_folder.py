"""A folder of descriptors that a test edits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.catalog.folder_edits import write_file

SERVICE: dict[str, Any] = {
    "id": "joke-service",
    "request-queue": "non-persistent://tg/request/joke",
    "response-queue": "non-persistent://tg/response/joke",
}
TOOL: dict[str, Any] = {
    "type": "tool-service",
    "name": "tell-joke",
    "description": "Tell a joke",
    "service": "joke-service",
}


def make_folder(folder: Path) -> Path:
    """Write one valid service and one valid tool."""
    write_file(folder, "tool-service/joke-service.json", SERVICE)
    write_file(folder, "tool/tell-joke.json", TOOL)
    return folder
