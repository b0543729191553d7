"""The service side: executes requests and replies to them, within limits."""
