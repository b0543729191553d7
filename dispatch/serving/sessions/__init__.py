"""Requests and replies over the sessions of dispatchers."""
