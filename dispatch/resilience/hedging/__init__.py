"""Hedging: a second attempt beside a slow first one."""
