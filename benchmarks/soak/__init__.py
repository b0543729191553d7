"""Soak: ``python -m benchmarks.soak`` or ``make soak`` keeps dispatch under load and faults for an hour."""
