"""What an instance remembers, so that a request that arrives twice runs once."""
