"""Tools for development: local broker, demo, loss probe."""
