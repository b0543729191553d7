"""Calls in trouble, simulated in virtual time: ``python -m benchmarks.simulation``."""
