"""Rules for Prometheus, made from values: what is recorded, when somebody is woken, when somebody gets a ticket.

``recording`` and ``alerts`` are for all tools, and stand in ``dashboards/rules/``; ``burn`` has what is generated for tools
that promise something, ``objectives`` what a promise comes to, ``documents`` the YAML.
"""
