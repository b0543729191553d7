"""A call through a relay, beside a direct one."""
