"""Benchmarks of the live catalogue."""
