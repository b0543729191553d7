"""The story's acts, in their order; each plays on the real dispatcher, and judges what its guards did."""

from dispatch.devtools.demo.acts.base import Act, Event, Events, Stage
from dispatch.devtools.demo.acts.hog import Hog
from dispatch.devtools.demo.acts.incidents import Incidents
from dispatch.devtools.demo.acts.open_circuit import OpenCircuit
from dispatch.devtools.demo.acts.slow_instance import SlowInstance

__all__ = ["Act", "Event", "Events", "Hog", "Incidents", "OpenCircuit", "SlowInstance", "Stage"]
