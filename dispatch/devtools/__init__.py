"""Development tools: local broker, demo, loss probe."""
