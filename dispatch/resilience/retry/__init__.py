"""Retries: which outcomes are repeated, their budget, the loop."""
