"""How much a broker loses: answers of several sizes, several calls in flight, without credit and with it.

``dispatch doctor --loss`` shows it. :class:`~dispatch.lossprobe.probe.Probe` measures, on topics of its own, against a
service in a process of its own; :mod:`.plan`, :mod:`.findings` and :mod:`.advice` are pure. Nothing of pulsar-client is
imported before a probe starts.
"""

from dispatch.lossprobe.advice import advice
from dispatch.lossprobe.findings import Cell, Findings, Run, Side
from dispatch.lossprobe.plan import Plan, PlanError, make_plan, size_text
from dispatch.lossprobe.probe import Probe, ProbeFailed

__all__ = [
    "Cell",
    "Findings",
    "Plan",
    "PlanError",
    "Probe",
    "ProbeFailed",
    "Run",
    "Side",
    "advice",
    "make_plan",
    "size_text",
]
