"""Prometheus rules, generated from values: recording rules, alerts, and error-budget rules of tools with an ``slo``.

``recording`` and ``alerts`` apply to every tool and are committed in ``dashboards/rules/``; ``burn_rate`` generates the
rules of tools whose policy has an ``slo``; ``rule_files`` renders YAML.
"""
