"""Toolkits in YAML, in the form of Chat2Graph."""
