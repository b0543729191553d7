"""Benchmarks of reading the calls in a model's output."""
