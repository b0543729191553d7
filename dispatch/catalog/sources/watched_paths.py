"""The directories whose changes may change the contents of a folder of descriptors: symbolic links are followed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

from dispatch.catalog.readers.item import KINDS
from dispatch.catalog.sources.folder_reader import MAX_FILES

MAX_LINKS: Final = 40
"""Symbolic links on one path, as on Linux."""

EDITOR_SUFFIXES: Final = ("~", ".swp", ".swx", ".tmp")
"""Ends of the names of files that editors create beside the file that they edit."""

Identity = tuple[int, int] | None


class WatchedPaths(NamedTuple):
    """What has to be watched for changes of one folder of descriptors.

    A ConfigMap of Kubernetes is updated by one rename of the symbolic link ``..data``, a deployment often by one of the
    folder itself: a watch of the folder alone misses both. Directories are watched without those below them, since the
    parent of the folder may have any size.

    Attributes:
        directories: resolved paths of the directories to watch.
        contents: those of ``directories`` in which every file may be a descriptor.
        entries: paths of single files, directories and symbolic links that matter in the others.
        identities: device and inode of each directory, None for a missing one. A directory that was replaced together with
            its parents is recognized by them alone: the operating system reports nothing for it.
    """

    directories: frozenset[str]
    contents: frozenset[str]
    entries: frozenset[str]
    identities: dict[str, Identity]

    def is_relevant(self, path: str) -> bool:
        """Return whether a change of ``path`` may change the contents."""
        if path in self.entries:
            return True
        parent, _, name = path.rpartition("/")
        return parent in self.contents and not is_editor_file(name)

    def is_current(self) -> bool:
        """Return whether each directory is still the one that was watched."""
        return all(_identify(path) == identity for path, identity in self.identities.items())


def is_editor_file(name: str) -> bool:
    """Return whether a file is a temporary one of an editor. ``..data`` is the symbolic link of a ConfigMap."""
    return name.endswith(EDITOR_SUFFIXES) or (name.startswith(".") and not name.startswith(".."))


def find_watched_paths(folder: str) -> WatchedPaths:
    """Return what to watch for changes of ``folder``, which may be missing. Never raises for what is there."""
    links: set[str] = set()
    root = _resolve("/", os.path.abspath(folder), links)
    contents = {_resolve(root, kind, links) for kind in KINDS}
    targets: set[str] = set()
    for directory in contents:
        for name in _list_links(directory):
            targets.add(_resolve(directory, name, links))
    entries = {root, *(f"{root}/{kind}" for kind in KINDS), *contents, *targets, *links}
    directories = {root, *contents, *map(os.path.dirname, entries)}
    identities = {path: _identify(path) for path in directories}
    existing = frozenset(path for path, identity in identities.items() if identity is not None)
    return WatchedPaths(existing, frozenset(contents), frozenset(entries), identities)


def _resolve(base: str, path: str, links: set[str]) -> str:
    """Return ``path``, relative to the resolved path ``base``, without symbolic links, and add these to ``links``."""
    current = "/" if path.startswith("/") else base
    rest = path.split("/")[::-1]
    count = 0
    while rest:
        part = rest.pop()
        if part in ("", "."):
            continue
        if part == "..":
            current = os.path.dirname(current)
            continue
        following = os.path.join(current, part)
        try:
            target = os.readlink(following)
        except (OSError, ValueError):  # not a symbolic link, or missing; ValueError: a NUL character
            current = following
            continue
        links.add(following)
        count += 1
        if count > MAX_LINKS:
            return following
        if target.startswith("/"):
            current = "/"
        rest += target.split("/")[::-1]
    return current


def _list_links(directory: str) -> Iterator[str]:
    try:
        with os.scandir(directory) as entries:
            visible = (entry for entry in entries if not entry.name.startswith("."))
            for entry in islice(visible, MAX_FILES + 1):
                if entry.is_symlink():
                    yield entry.name
    except (OSError, ValueError):
        return


def _identify(path: str) -> Identity:
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino
