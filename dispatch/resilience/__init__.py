"""Guards of a call. The cores are pure: no asyncio, clock and randomness are arguments."""
