"""Processes: run a command, start and stop a child, and end it with its owner."""
