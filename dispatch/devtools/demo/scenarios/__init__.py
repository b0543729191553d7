"""The story's acts, in their order; each plays on the real dispatcher, and judges what its guards did."""

from dispatch.devtools.demo.scenarios.base import Act, Event, Events, Stage
from dispatch.devtools.demo.scenarios.hog import Hog
from dispatch.devtools.demo.scenarios.incidents import Incidents
from dispatch.devtools.demo.scenarios.open_circuit import OpenCircuit
from dispatch.devtools.demo.scenarios.slow_instance import SlowInstance

__all__ = ["Act", "Event", "Events", "Hog", "Incidents", "OpenCircuit", "SlowInstance", "Stage"]
