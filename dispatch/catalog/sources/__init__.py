"""Sources of descriptors. Each delivers items, of which the loader makes a catalogue."""

from dispatch.catalog.sources.directory import check_directory, load_directory
from dispatch.catalog.sources.folder import Folder

__all__ = ["Folder", "check_directory", "load_directory"]
