"""Random edits of folders of descriptors: of every kind by which editors and deployment tools change one."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

LAYOUTS = ("plain", "config-map", "release")
"""How a folder is deployed: files in place; the volume of a ConfigMap; a symbolic link to the folder of a release."""
STEADY = "steady"
"""End of the name of the tool that each folder always has, for callers."""
SMALLEST, LARGEST = 3, 12
"""Tools of one folder, beyond which none is deleted or created."""
GAP_S = 0.002
"""Between the two halves of a file that is written in pieces."""


def encode(content: Any) -> bytes:
    """Return the bytes of a file: of a text, or of a value as JSON."""
    if isinstance(content, bytes):
        return content
    return (content if isinstance(content, str) else json.dumps(content)).encode()


def write_file(folder: Path, name: str, content: Any) -> Path:
    """Write a file in place."""
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


def swap_link(link: Path, target: str) -> None:
    """Replace a symbolic link atomically."""
    temporary = link.with_name(f"{link.name}_tmp")
    temporary.symlink_to(target)
    os.replace(temporary, link)


def update_config_map(mount: Path, files: Mapping[str, Any], revision: int) -> None:
    """Write ``files`` as the kubelet updates the volume of a ConfigMap: a new folder, then the swap of ``..data``.

    ``files`` have paths as in ``items[].path`` of the volume; the first component of each is a link into ``..data``.
    """
    data = mount / "..data"
    former = mount / os.readlink(data) if data.is_symlink() else None
    folder = mount / f"..2026_11_22_{revision:06}"
    for name, content in files.items():
        write_file(folder, name, content)
    swap_link(data, folder.name)
    names = {Path(name).parts[0] for name in files}
    for name in names:
        if not (mount / name).is_symlink():
            (mount / name).symlink_to(Path("..data") / name)
    for path in mount.iterdir():
        if path.is_symlink() and not path.name.startswith("..") and path.name not in names:
            path.unlink()
    if former is not None:
        shutil.rmtree(former)


class EditedFolder:
    """A folder of descriptors with random edits. After each one, ``expected`` has what must come into force.

    Args:
        path: the folder to create.
        layout: one of :data:`LAYOUTS`.
        name: begins the names of its tools and of its service.
        randomness: chooses the edits.
    """

    def __init__(self, path: Path, layout: str, name: str, randomness: random.Random) -> None:
        self.path = path
        self.service = name
        self.steady = f"{name}-{STEADY}"
        self.expected: dict[str, str] = {}
        """Description of each tool by its name."""
        self._random = randomness
        self._edits = 0
        self._layouts: dict[str, tuple[Callable[[], None], ...]] = {
            "plain": (
                *(self.write_in_place, self.write_in_pieces, self.replace_atomically),
                *(self.create_file, self.delete_file, self.remove_and_restore, self.recreate, self.correct_an_error),
            ),
            "config-map": (self.swap_config_map,),
            "release": (self.swap_release, self.write_in_place, self.replace_atomically),
        }
        self._kinds = self._layouts[layout]
        self.expected = dict.fromkeys((self.steady, *(f"{name}-{number}" for number in range(SMALLEST))), "first")
        if layout == "plain":
            self._write_all(path)
        else:
            path.mkdir(parents=True) if layout == "config-map" else path.parent.mkdir(parents=True, exist_ok=True)
            self._kinds[0]()

    def edit(self) -> str:
        """Make one random edit; return its kind."""
        kind = self._random.choice(self._kinds)
        kind()
        return kind.__name__.replace("_", " ")

    def make_noise(self) -> None:
        """Write and delete what editors leave beside a file: it changes nothing."""
        for name in (".steady.json.swp", "steady.json~", "steady.json.tmp", "4913"):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                (self.path / "tool" / name).write_text("{")
                if self._random.random() < 0.5:
                    (self.path / "tool" / name).unlink()

    # -- edits --------------------------------------------------------------------------------------------------

    def write_in_place(self) -> None:
        """Truncate and write a file."""
        self._change()
        name, raw = self._changed
        write_file(self.path, name, raw)

    def write_in_pieces(self) -> None:
        """Truncate a file and write it in two halves."""
        self._change()
        name, raw = self._changed
        content = encode(raw)
        with open(self.path / name, "wb") as file:
            for piece in (content[: len(content) // 2], content[len(content) // 2 :]):
                file.write(piece)
                file.flush()
                time.sleep(GAP_S)

    def replace_atomically(self) -> None:
        """Rename a new file over a former one."""
        self._change()
        replace_file(self.path, *self._changed)

    def create_file(self) -> None:
        """Add a tool; change one where there are enough."""
        if len(self.expected) < LARGEST:
            self._edits += 1
            self.expected[f"{self.service}-{self._edits + SMALLEST}"] = f"edit {self._edits}"
        else:
            self._change()
        write_file(self.path, *self._changed)

    def delete_file(self) -> None:
        """Delete a tool; change one where there are few."""
        if len(self.expected) <= SMALLEST:
            self.write_in_place()
            return
        name = self._random.choice([name for name in self.expected if name != self.steady])
        del self.expected[name]
        (self.path / "tool" / f"{name}.json").unlink()

    def remove_and_restore(self) -> None:
        """Move the folder elsewhere, change it there, and move it back."""
        elsewhere = self.path.with_name(f".{self.path.name}.elsewhere")
        self.path.rename(elsewhere)
        self._change()
        write_file(elsewhere, *self._changed)
        if self._random.random() < 0.5:
            time.sleep(self._random.random() * 0.5)
        elsewhere.rename(self.path)

    def recreate(self) -> None:
        """Delete the folder with all files, and create it again.

        The tool service goes first and returns last: in between the folder is no valid one, however long its thread waits
        for a processor. Valid halves would rightly come into force, without the tool that callers call.
        """
        shutil.rmtree(self.path / "tool-service")
        shutil.rmtree(self.path)
        self._change()
        self._write_all(self.path)

    def correct_an_error(self) -> None:
        """Write half a file, and the whole one much later."""
        self._change()
        name, raw = self._changed
        write_file(self.path, name, encode(raw)[:20])
        time.sleep(self._random.random() * 0.5)
        write_file(self.path, name, raw)

    def swap_config_map(self) -> None:
        """Update the volume of a ConfigMap."""
        self._change_any()
        update_config_map(self.path, dict(self._files()), self._edits)

    def swap_release(self) -> None:
        """Write the folder of another release, and point the symbolic link to it."""
        former = self.path.resolve() if self.path.is_symlink() else None
        self._change_any()
        release = self.path.parent / f"release-{self._edits}"
        self._write_all(release)
        swap_link(self.path, release.name)
        if former is not None:
            shutil.rmtree(former)

    # -- contents -----------------------------------------------------------------------------------------------

    def _change(self) -> None:
        self._edits += 1
        name = self._random.choice(list(self.expected))
        del self.expected[name]
        self.expected[name] = f"edit {self._edits}"

    def _change_any(self) -> None:
        self._change()
        if self._random.random() < 0.3 and len(self.expected) < LARGEST:
            self.expected[f"{self.service}-{self._edits + SMALLEST}"] = f"edit {self._edits}"
        elif self._random.random() < 0.3 and len(self.expected) > SMALLEST:
            del self.expected[self._random.choice([name for name in self.expected if name != self.steady])]

    @property
    def _changed(self) -> tuple[str, Any]:
        """File and content of the tool that was changed last."""
        return self._file(next(reversed(self.expected)))

    def _file(self, name: str) -> tuple[str, Any]:
        return f"tool/{name}.json", {
            "type": "tool-service",
            "name": name,
            "description": self.expected[name],
            "service": self.service,
        }

    def _files(self) -> Iterator[tuple[str, Any]]:
        """Name and content of every file; the tool service is last (see :meth:`recreate`)."""
        yield from map(self._file, self.expected)
        yield (
            f"tool-service/{self.service}.json",
            {
                "id": self.service,
                "request-queue": f"non-persistent://tg/request/{self.service}",
                "response-queue": f"non-persistent://tg/response/{self.service}",
            },
        )

    def _write_all(self, folder: Path) -> None:
        for name, raw in self._files():
            write_file(folder, name, raw)
