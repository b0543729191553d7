"""Circuit breaker."""
