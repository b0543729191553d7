"""Balancing: which instance of a service gets a request. Pure: no asyncio, clock and randomness handed in."""
