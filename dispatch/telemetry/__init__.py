"""What a dispatcher tells of itself: metrics, traces, log lines, events.

``names`` are what operators see; ``settings`` what is told; ``instruments``, ``collector`` and ``exposition`` are the
metrics, ``tracing``, ``serving`` and ``context`` the traces; ``watch`` joins what a dispatcher has to tell with ``events``
and ``logs``.
"""
