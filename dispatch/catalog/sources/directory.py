"""Loads or checks a folder of descriptors once."""

from __future__ import annotations

import os

from dispatch.catalog.catalog import Catalog, check_items
from dispatch.catalog.errors import Problem
from dispatch.catalog.loader import require_valid
from dispatch.catalog.sources.folder_reader import FolderReader


def load_directory(path: str | os.PathLike[str]) -> Catalog:
    """Load the catalogue in the folder ``path``. Warnings go to the log ``dispatch.catalog``.

    Raises:
        CatalogError: lists all errors in the descriptors, each with its file, key and fix.
    """
    return require_valid(*check_directory(path))


def check_directory(path: str | os.PathLike[str]) -> tuple[Catalog | None, list[Problem]]:
    """Return the catalogue in the folder ``path`` and all problems, always in the same order: of the folder, then of
    services, then of tools, each by file name. With any error the catalogue is None."""
    reading = FolderReader(path).read()
    catalog, found = check_items(reading.items, "directory")
    return None if reading.has_errors else catalog, [*reading.problems, *found]
