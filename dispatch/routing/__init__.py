"""The instances of a service: discovery, pool, channels."""
