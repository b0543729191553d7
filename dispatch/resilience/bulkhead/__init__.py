"""Bulkhead: bounded concurrency with a bounded wait."""
