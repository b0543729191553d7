"""Grafana's dashboards, as code: each module ``overview``, ``tool``, ``instances`` makes one, ``generate`` writes them.

A package of the repository alone. What users get is its JSON, in the wheel: ``dispatch dashboards export DIR``.
"""
