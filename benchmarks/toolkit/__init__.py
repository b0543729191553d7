"""Benchmark of the toolkit."""
