"""Pacing towards receivers that acknowledge nothing."""
