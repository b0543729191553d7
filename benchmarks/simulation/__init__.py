"""Calls under failures and overload, simulated in virtual time: ``python -m benchmarks.simulation``."""
