"""Spans and the propagation of trace context, with OpenTelemetry."""
