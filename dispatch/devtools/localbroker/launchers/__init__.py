"""Launchers of a broker: as a process of this machine or in a container."""
