"""Grafana dashboards as code: ``overview``, ``tool`` and ``instances`` build one each, ``generate`` writes their JSON.

The package is not distributed. The wheel contains the JSON, which ``dispatch dashboards export DIR`` writes.
"""
