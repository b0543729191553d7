"""Endpoints over a transport: wire format, request and reply, flow control."""
