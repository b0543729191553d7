"""Processes: run commands, manage child processes, and end them with their parent."""
