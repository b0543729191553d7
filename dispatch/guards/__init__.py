"""Guards: what stands between a call and a service in trouble. Pure: no asyncio, clock and randomness handed in."""
