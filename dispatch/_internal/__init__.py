"""Helpers without domain knowledge: clock, queues, permits, suggestions."""
