"""Deduplication: a request that arrives twice is executed once."""
