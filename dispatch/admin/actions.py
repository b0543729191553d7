"""Actions of operators: each has a user and a reason, is logged for audits, is an event, and can be undone by time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Final

import msgspec

from dispatch._internal import excerpt
from dispatch.admin.views import DispatcherViews, ServiceViews, Values
from dispatch.catalog import CatalogError
from dispatch.catalog.approvals import ApprovalsError
from dispatch.errors import DispatchError
from dispatch.resilience.breaker import CircuitBreaker, State
from dispatch.routing.instance import SHARED
from dispatch.telemetry.events import AUDIT, MAX_USER_CHARS, ActionTaken, Events
from dispatch.transports.errors import describe_without_call

MAX_REASON_CHARS: Final = 500
MAX_SECONDS: Final = 7 * 24 * 3600.0
LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")
_CIRCUIT_ACTIONS: Final[dict[str, tuple[Callable[[CircuitBreaker], object], State]]] = {
    "open": (CircuitBreaker.force_open, State.FORCED_OPEN),
    "close": (CircuitBreaker.reset, State.CLOSED),
    "reset": (CircuitBreaker.reset, State.CLOSED),
    "disable": (CircuitBreaker.disable, State.DISABLED),
}


class ApiError(Exception):
    """A request that is answered with a status and a text."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status


class ActionRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of an action; see docs/reference/admin-api.md."""

    reason: str = ""
    user: str = ""
    action: str = ""
    seconds: float | None = msgspec.field(default=None, name="for")
    version: str | None = None
    instance: str | None = None
    service: str | None = None
    level: str = ""
    logger: str = "dispatch"
    fingerprint: str = ""


class Actions:
    """Acts on one process.

    Args:
        views: of the process.
        events: of the dispatcher; None: of a service.
    """

    def __init__(self, views: DispatcherViews | ServiceViews, events: Events | None) -> None:
        self._views = views
        self._events = events
        self._undo: dict[str, tuple[asyncio.TimerHandle, Callable[[], str]]] = {}
        """What undoes the actions that end by themselves, and when, by their targets."""
        self._levels: dict[str, int] = {}
        """The levels to which loggers return, by their names."""
        self._draining: set[asyncio.Task[None]] = set()

    async def perform(self, kind: str, target: str, request: ActionRequest, user: str) -> Values:
        """Perform an action and return its event. It replaces earlier actions on its target, also the time at which they
        were to be undone.

        Args:
            kind: ``circuits``, ``instances``, ``sources``, ``tools`` or ``log-level``.
            target: name of the tool, id of the instance or of the source; empty: none.
            user: of the token; empty: the request names the user.

        Raises:
            ApiError: it is not possible; nothing has changed.
        """
        user = user or request.user.strip()
        reason = request.reason.strip()
        if not user or len(user) > MAX_USER_CHARS:
            raise ApiError("Name who acts in 'user'.")
        if not 1 <= len(reason) <= MAX_REASON_CHARS:
            raise ApiError(f"Give a 'reason' of 1 to {MAX_REASON_CHARS} characters.")
        if request.seconds is not None and not 0 < request.seconds <= MAX_SECONDS:
            raise ApiError("'for' is no number of seconds from 0 to 604800.")
        acts = {
            "circuits": self._act_on_circuit,
            "instances": self._act_on_instance,
            "sources": self._refresh,
            "tools": self._approve,
            "log-level": self._set_level,
        }
        action, shown, undo = await acts[kind](target, request)
        until = None if undo is None or request.seconds is None else time.time() + request.seconds
        self._publish(ActionTaken(time.time(), user, action, shown, reason, until))
        former = self._undo.pop(shown, None)
        if former is not None:
            former[0].cancel()
        if until is not None and undo is not None and request.seconds is not None:
            loop = asyncio.get_running_loop()
            timer = loop.call_later(request.seconds, self._undo_action, undo, user, shown, request.seconds)
            self._undo[shown] = timer, undo
        return self._views.events.latest()[0]

    def _undo_action(self, undo: Callable[[], str], user: str, shown: str, seconds: float) -> None:
        del self._undo[shown]
        if did := undo():
            self._publish(ActionTaken(time.time(), user, did, shown, f"{seconds:g} s are over", None))

    def _publish(self, event: ActionTaken) -> None:
        AUDIT.info(
            "action: %s %s by '%s' (%s)%s",
            event.action,
            excerpt(event.target, 300),
            excerpt(event.user, MAX_USER_CHARS),
            excerpt(event.reason, MAX_REASON_CHARS),
            "" if event.until is None else f", until {time.strftime('%H:%M:%S', time.localtime(event.until))}",
            extra={f"dispatch_{name}": value for name, value in msgspec.structs.asdict(event).items()},
        )
        if self._events is None:
            self._views.events.record(event)
        else:
            self._events.publish(event)  # the log is one of its listeners

    def close(self) -> None:
        """Undo what outlives the endpoint, the levels of loggers that were set for a time, and nothing else any more."""
        for shown, (timer, undo) in self._undo.items():
            timer.cancel()
            if shown.startswith("logger "):
                undo()
        self._undo.clear()

    @property
    def _dispatcher(self) -> DispatcherViews:
        if not isinstance(self._views, DispatcherViews):
            raise ApiError("This process has no dispatcher: act at one, or drain the instance here.", 404)
        return self._views

    # -- actions: each returns its name, its target, and what undoes it if nothing else has changed the target since ------

    async def _act_on_circuit(self, tool: str, request: ActionRequest) -> tuple[str, str, Callable[[], str] | None]:
        views = self._dispatcher
        if request.action not in _CIRCUIT_ACTIONS:
            raise ApiError(f"'action' is one of {', '.join(_CIRCUIT_ACTIONS)}.")
        try:
            resolved = views.resolve(tool, request.version)
        except DispatchError as error:
            raise ApiError(describe_without_call(error), 404) from None
        guards = views.runtime.guards_of(resolved)
        breaker = guards.breaker
        if request.instance is not None:
            breaker = guards.instance_breakers.get(request.instance)
        if breaker is None:
            raise ApiError("There is no circuit: the policy has none, or the instance was not called.", 404)
        act, state = _CIRCUIT_ACTIONS[request.action]
        act(breaker)
        key = guards.label, guards.version, request.instance
        views.deadlines.pop(key, None)
        shown = f"circuit {guards.label}{f' {guards.version}' if guards.version else ''}"
        shown += f" at {request.instance}" if request.instance else ""
        if state is State.CLOSED:
            return request.action, shown, None
        if request.seconds is not None:
            views.deadlines[key] = time.time() + request.seconds

        def undo() -> str:
            views.deadlines.pop(key, None)
            if breaker.state is not state:
                return ""
            breaker.reset()
            return "reset"

        return request.action, shown, undo

    async def _act_on_instance(self, id: str, request: ActionRequest) -> tuple[str, str, Callable[[], str] | None]:
        shown = f"instance {id}"
        if isinstance(self._views, ServiceViews):
            found = [
                each
                for each in self._views.servers
                if each.instance == id and request.service in (None, each.service_id)
            ]
            if not found:
                raise ApiError("This process has no such instance.", 404)
            if len(found) > 1:
                raise ApiError(f"Name the service in 'service': {', '.join(each.service_id for each in found)}.")
            (server,) = found
            if request.action != "drain" or request.seconds is not None:
                raise ApiError("At the service itself 'action' is drain, without 'for': eject is of dispatchers.")
            task = asyncio.create_task(server.drain())
            self._draining.add(task)
            task.add_done_callback(self._draining.discard)
            return "drain", shown if request.service is None else f"{shown} of {request.service}", None
        if request.action not in ("eject", "admit"):
            raise ApiError("'action' is eject or admit; drain is an action of the service's own process.")
        views = self._views
        if id == SHARED and request.service is None:
            raise ApiError(f"Name the service in 'service': '{SHARED}' is the topic of each one.")
        pools = [
            (key.service, pool.balancer)
            for key, pool in views.runtime.pool_registry.all()
            if id in pool.balancer and request.service in (None, key.service)
        ]
        if not pools:
            raise ApiError(f"There is no instance '{id[:80]}' whose service was called.", 404)
        if request.service is not None:
            shown += f" of {request.service}"
        until = None if request.seconds is None else time.time() + request.seconds
        for service, balancer in pools:
            views.held_until.pop((service, id), None)
            if request.action == "admit":
                balancer.admit(id)
            else:
                balancer.hold(id)
                if until is not None:
                    views.held_until[service, id] = until
        if request.action == "admit":
            return "admit", shown, None

        def undo() -> str:
            # A later action may have named the service, or not, and then has another target: its time counts.
            held = [(key, its) for key, its in pools if views.held_until.get((key, id)) == until]
            for service, _ in held:
                del views.held_until[service, id]
            return "admit" if sum([balancer.end_hold(id) for _, balancer in held]) else ""

        return "eject", shown, undo

    async def _refresh(self, id: str, _request: ActionRequest) -> tuple[str, str, None]:
        registry = self._dispatcher.live.registry
        try:
            await registry.refresh(id)
        except (LookupError, CatalogError) as error:
            raise ApiError(str(error), 404 if isinstance(error, LookupError) else 409) from None
        except Exception as error:  # of a source, which may raise anything
            problem = excerpt(str(error), 300)
            raise ApiError(f"The source is out of reach, its items stay in force: {problem}", 502) from None
        return "refresh", f"source {id}", None

    async def _approve(self, name: str, request: ActionRequest) -> tuple[str, str, None]:
        registry = self._dispatcher.live.registry
        if not request.fingerprint:
            raise ApiError("Give the 'fingerprint' of the definition: 'new' among those 'held' in /api/sources.")
        try:
            await registry.approve(name, request.fingerprint)
        except (LookupError, ApprovalsError) as error:
            raise ApiError(str(error), 404 if isinstance(error, LookupError) else 409) from None
        return "approve", f"definition {name} {request.fingerprint[:12]}", None

    async def _set_level(self, _target: str, request: ActionRequest) -> tuple[str, str, Callable[[], str]]:
        name = request.logger
        if name == AUDIT.name or (name != "dispatch" and not name.startswith("dispatch.")):
            raise ApiError(f"'logger' is dispatch, or one below it; {AUDIT.name} has a line for each action.")
        if request.level not in LEVELS:
            raise ApiError(f"'level' is one of {', '.join(LEVELS)}.")
        logger = logging.getLogger(name)
        former = self._levels.pop(name, logger.level)
        if request.seconds is not None:
            self._levels[name] = former
        logger.setLevel(request.level)
        level = logger.level

        def undo() -> str:
            del self._levels[name]
            if logger.level != level:
                return ""
            logger.setLevel(former)
            return f"log {logging.getLevelName(former)}"

        return f"log {request.level}", f"logger {name}", undo


def decode_request(body: bytes) -> ActionRequest:
    """Return the body of an action.

    Raises:
        ApiError: it is not one.
    """
    with contextlib.suppress(UnicodeDecodeError):
        try:
            return msgspec.json.decode(body, type=ActionRequest)
        except msgspec.DecodeError as error:
            fields = ", ".join(each.encode_name for each in msgspec.structs.fields(ActionRequest))
            raise ApiError(f"The body is not valid: {excerpt(str(error), 200)}. Its fields are {fields}.") from None
    raise ApiError("The body is not UTF-8.")
