"""What one dispatcher tells of itself: meters, events and log lines, joined here so that everything is told once."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from dispatch.resilience.breaker.breaker import Listener, State
from dispatch.telemetry.events import CatalogChanged, CircuitChanged, Event, Events, InstanceChanged
from dispatch.telemetry.logs import Transitions
from dispatch.telemetry.metrics.collector import LiveCollector, Observed
from dispatch.telemetry.metrics.exposition import registry_of
from dispatch.telemetry.metrics.instruments import Instruments, ServiceMeter, ToolMeter
from dispatch.telemetry.names import OTHER
from dispatch.telemetry.settings import Telemetry

logger = logging.getLogger("dispatch.transitions")

_WORSE = (State.OPEN, State.FORCED_OPEN)


class Watch:
    """Made by a dispatcher when it is started.

    Args:
        settings: what is to be told.
        events: who listens.
        clock: the loop's.
    """

    def __init__(self, settings: Telemetry, events: Events, clock: Callable[[], float]) -> None:
        self.settings = settings
        self._events = events
        self._lines = Transitions(logger, clock)
        self._instruments: Instruments | None = None
        self._collector: LiveCollector | None = None
        self._observed: Observed | None = None
        self._tools: dict[str, ToolMeter] = {}
        self._services: dict[str, ServiceMeter] = {}
        if settings.metrics:
            registry = registry_of(settings)
            self._instruments = Instruments.of(registry)
            self._collector = LiveCollector.of(registry)

    def observe(self, dispatcher: Observed) -> None:
        """Have it looked at when somebody scrapes."""
        if self._collector is not None:
            self._observed = dispatcher
            if self._instruments is not None:
                for source in dispatcher.tools():
                    self._instruments.source(source)
            self._collector.add(dispatcher)

    # -- meters -------------------------------------------------------------------------------------------------

    def tool(self, label: str) -> ToolMeter | None:
        """The meter of a tool (see :attr:`Target.meter_label`) or of ``_OTHER``; None: nothing is measured."""
        meter = self._tools.get(label)
        if meter is None and self._instruments is not None:
            meter = self._tools[label] = self._instruments.tool(label)
        return meter

    @property
    def other(self) -> ToolMeter | None:
        """The meter of what is in no catalogue."""
        return self.tool(OTHER)

    def service(self, id: str) -> ServiceMeter | None:
        """The meter of a service."""
        meter = self._services.get(id)
        if meter is None and self._instruments is not None:
            meter = self._services[id] = self._instruments.service(id)
        return meter

    def keep(self, tools: Iterable[str], services: Iterable[str]) -> None:
        """All others have gone, and their series go.

        Args:
            tools: labels.
            services: ids.
        """
        if self._instruments is None:
            return
        wanted = {*tools, OTHER}
        for label in [label for label in self._tools if label not in wanted]:
            self._instruments.release("tool", self._tools.pop(label).label, gone=True)
        left = {*services, OTHER}
        for id in [id for id in self._services if id not in left]:
            self._instruments.release("service", self._services.pop(id).label, gone=True)

    def close(self) -> None:
        """There is nothing more to tell."""
        if self._collector is not None and self._observed is not None:
            self._collector.remove(self._observed)
        if self._instruments is not None:
            for meter in self._tools.values():
                self._instruments.release("tool", meter.label, gone=False)
            for each in self._services.values():
                self._instruments.release("service", each.label, gone=False)
        self._tools.clear()
        self._services.clear()

    # -- changes ------------------------------------------------------------------------------------------------

    def circuit(self, tool: str, instance: str | None = None) -> Listener:
        """What the breaker of that tool (at that instance) is to call with each transition.

        Args:
            tool: its label.
        """

        def told(old: State, new: State, why: str) -> None:
            meter = self._tools.get(tool)
            if meter is not None and instance is None:
                meter.transitions[new]()
            self._tell(CircuitChanged(time.time(), tool, instance, str(old), str(new), why))
            where = f"'{tool}'" if instance is None else f"'{tool}' at {instance}"
            self._lines.say(
                logging.WARNING if new in _WORSE else logging.INFO,
                ("circuit", tool, instance or "", str(new)),
                f"circuit of {where}: {old} to {new} ({why})",
                tool=tool,
                instance=instance,
                old=str(old),
                new=str(new),
                why=why,
            )

        return told

    def instance(self, service: str, id: str, change: str, why: str) -> None:
        """An instance ``joined``, ``left``, was ``ejected`` or has ``returned``."""
        if self._instruments is not None:
            if change == "joined":
                self._instruments.joined(service, id)
            elif change == "ejected":
                self._instruments.ejected(service, id, why)
            elif change == "left":
                self._instruments.left(service, id)
        self._tell(InstanceChanged(time.time(), service, id, change, why))
        self._lines.say(
            logging.WARNING if change == "ejected" else logging.INFO,
            ("instance", service, id, change),
            f"instance {id} of {service}: {change} ({why})",
            service=service,
            instance=id,
            change=change,
            why=why,
        )

    def reloaded(self, source: str, tools: int, problem: str = "") -> None:
        """Another catalogue or policy is in force; or, with a ``problem``, was refused."""
        if self._instruments is not None:
            self._instruments.source(source)
            self._instruments.reloads.labels(source, "failed" if problem else "ok").inc()
            self._instruments.taken_over.labels(source).set(0 if problem else 1)
        self._tell(CatalogChanged(time.time(), source, not problem, tools, problem))
        if problem:
            self._lines.say(
                logging.WARNING,
                ("reload", source, problem),
                f"the catalogue was not reloaded, the former one stays in force: {problem}",
                source=source,
                problem=problem,
            )

    def _tell(self, event: Event) -> None:
        if len(self._events):
            self._events.tell(event)
