"""The demo's scenarios. Each injects a fault, observes the dispatcher's guards, and checks their reaction."""

from dispatch.devtools.demo.scenarios.base import Event, EventLog, Scenario, ScenarioContext
from dispatch.devtools.demo.scenarios.every_outcome import EveryOutcome
from dispatch.devtools.demo.scenarios.noisy_user import NoisyUser
from dispatch.devtools.demo.scenarios.open_circuit import OpenCircuit
from dispatch.devtools.demo.scenarios.slow_instance import SlowInstance

__all__ = [
    "Event",
    "EventLog",
    "EveryOutcome",
    "NoisyUser",
    "OpenCircuit",
    "Scenario",
    "ScenarioContext",
    "SlowInstance",
]
