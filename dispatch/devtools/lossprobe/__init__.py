"""How much a broker loses: answers of several sizes, several calls in flight, without credit and with it.

``dispatch doctor --loss`` shows it. :class:`~dispatch.devtools.lossprobe.probe.Probe` measures, on topics of its own, against a
service in a process of its own; :mod:`.plan`, :mod:`.findings` and :mod:`.advice` are pure. Nothing of pulsar-client is
imported before a probe starts.
"""

from dispatch.devtools.lossprobe.advice import advice
from dispatch.devtools.lossprobe.plan import Plan, PlanError, make_plan, size_text
from dispatch.devtools.lossprobe.probe import Probe, ProbeFailed
from dispatch.devtools.lossprobe.results import Cell, Findings, Run, Side

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
