"""Incidents on a genuine broker: ``python -m benchmarks.incidents`` measures what the defects of past releases cost."""
