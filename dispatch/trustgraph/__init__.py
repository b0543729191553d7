"""Compatibility with TrustGraph's client."""
