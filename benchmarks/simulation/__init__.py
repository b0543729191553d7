"""Calls in trouble, simulated in virtual time: ``python -m benchmarks.simulate``."""
