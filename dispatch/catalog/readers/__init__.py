"""Readers of descriptors of services and tools; each key is validated."""
