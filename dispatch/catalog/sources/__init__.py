"""Sources of descriptors. Each delivers items, of which the loader makes a catalogue."""

from dispatch.catalog.sources.directory import check_directory, load_directory

__all__ = ["check_directory", "load_directory"]
