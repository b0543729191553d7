"""The compared systems; see :class:`benchmarks.peers.system.System`."""
