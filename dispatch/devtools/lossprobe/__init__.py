"""How much a broker loses: answers of several sizes, several calls in flight, without credit and with it.

``dispatch doctor --loss`` shows it. :class:`~dispatch.devtools.lossprobe.probe.Probe` measures on its own topics, against a
service in a separate process; :mod:`.plan`, :mod:`.results` and :mod:`.advice` are pure. pulsar-client is imported when a
probe starts.
"""

from dispatch.devtools.lossprobe.advice import advice
from dispatch.devtools.lossprobe.plan import Plan, PlanError, make_plan, size_text
from dispatch.devtools.lossprobe.probe import Probe, ProbeError
from dispatch.devtools.lossprobe.results import Cell, Findings, Run, Side

__all__ = [
    "Cell",
    "Findings",
    "Plan",
    "PlanError",
    "Probe",
    "ProbeError",
    "Run",
    "Side",
    "advice",
    "make_plan",
    "size_text",
]
