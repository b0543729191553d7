"""Telemetry of dispatchers and tool services: metrics, traces, log lines and events.

``observers`` has the settings, the names that operators see and the classes that other packages report to. ``reporting``
implements them with ``call_metrics``, ``gauges``, ``exposition`` and ``tracing``, which import prometheus-client and
OpenTelemetry's API: they are imported when a dispatcher or a server starts. ``rules`` exports rules for Prometheus.
"""
