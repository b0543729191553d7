"""Processes of a case."""
