"""Loss probe: measures how many messages a broker drops, by reply size and calls in flight, with and without sessions.

``dispatch doctor --loss`` displays it. :class:`~dispatch.devtools.lossprobe.probe.Probe` measures on topics of its own with
a service in a separate process; :mod:`.plan`, :mod:`.results` and :mod:`.advice` are pure. pulsar-client is imported when a
probe starts.
"""

from dispatch.devtools.lossprobe.advice import give_advice
from dispatch.devtools.lossprobe.plan import Plan, PlanError, format_size, make_plan
from dispatch.devtools.lossprobe.probe import Probe, ProbeError
from dispatch.devtools.lossprobe.results import Measurement, ProbeResults, RunResult, Variant

__all__ = [
    "Measurement",
    "Plan",
    "PlanError",
    "Probe",
    "ProbeError",
    "ProbeResults",
    "RunResult",
    "Variant",
    "format_size",
    "give_advice",
    "make_plan",
]
