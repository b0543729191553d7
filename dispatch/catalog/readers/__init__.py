"""Readers of descriptors: what a service and a tool may say, checked key by key."""
