"""Cost of calls of Python functions."""
