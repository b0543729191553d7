"""Where descriptors come from. Each source delivers items; the loader makes one catalogue of them."""

from dispatch.catalog.sources.directory import check_directory, load_directory

__all__ = ["check_directory", "load_directory"]
