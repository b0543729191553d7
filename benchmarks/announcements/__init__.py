"""Benchmarks of services that announce themselves."""
