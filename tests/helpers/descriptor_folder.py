"""A folder of descriptors that a test edits."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

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


def write_file(folder: Path, name: str, content: Any) -> Path:
    """Write a file in place: bytes, a text, or a value as JSON."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode(content))
    return path


def replace_file(folder: Path, name: str, content: Any) -> Path:
    """Write another file and rename it."""
    path = folder / name
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_bytes(encode(content))
    os.replace(temporary, path)
    return path


def encode(content: Any) -> bytes:
    """Return the bytes of a file."""
    if isinstance(content, bytes):
        return content
    return (content if isinstance(content, str) else json.dumps(content)).encode()


def write_config_map(mount: Path, files: dict[str, Any], revision: int) -> None:
    """Write ``files`` as the kubelet updates the volume of a ConfigMap: a new folder, then the swap of ``..data``.

    ``files`` have paths as in ``items[].path`` of the volume; the first component of each becomes a symbolic link.
    """
    mount.mkdir(parents=True, exist_ok=True)
    data = mount / "..data"
    former = mount / os.readlink(data) if data.is_symlink() else None
    folder = mount / f"..2026_11_22_{revision:06}"
    for name, content in files.items():
        write_file(folder, name, content)
    temporary = mount / "..data_tmp"
    temporary.symlink_to(folder.name)
    os.replace(temporary, data)
    names = {Path(name).parts[0] for name in files}
    for name in names:
        link = mount / name
        if not link.is_symlink():
            link.symlink_to(Path("..data") / name)
    for path in mount.iterdir():
        if path.is_symlink() and not path.name.startswith("..") and path.name not in names:
            path.unlink()
    if former is not None:
        remove_tree(former)


def remove_tree(folder: Path) -> None:
    """Delete a folder and its contents, which other processes may edit."""
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink()
    folder.rmdir()
