"""Telemetry of dispatchers and tool services: metrics, traces, log lines and events.

``settings`` has the options, ``names`` the names that operators see. ``call_observer`` and ``served_request_observer`` are
the protocols that other packages report to; ``dispatcher_observer`` and ``server_observer`` implement them with ``metrics``,
``tracing``, ``logs`` and ``events``. ``alerting`` generates rules for Prometheus.
"""
