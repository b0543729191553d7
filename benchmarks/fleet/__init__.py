"""A rate limit that the dispatchers of a fleet share, in processes of their own."""
