"""A probe: topics of its own on one broker, both services in another process, both clients in this one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dispatch
from dispatch.catalog import Catalog
from dispatch.devtools.lossprobe.load import FailedCallError, Load, LostCallError
from dispatch.devtools.lossprobe.results import Run, Side
from dispatch.dispatcher import Dispatcher
from dispatch.errors import Outcome, TransportError
from dispatch.transports import Security, open_transport

if TYPE_CHECKING:
    from dispatch.devtools.lossprobe.plain_client import PlainClient

START_S = 20.0
"""How long the service's process may take to be there: an interpreter's start and some topics; seconds on a busy machine."""
REACH_S = 10.0
"""How long the first answer may take to come."""
STOP_S = 10.0
"""How long the service's process may take to end: closing its connections takes 6 s at most."""
CALL_S = 60.0
"""A call of ours waits so long for its answer while others are answered; a silence ends it sooner (:mod:`.load`)."""
SAID_CHARS = 2_000
_HOME = str(Path(dispatch.__file__).resolve().parent.parent)


class ProbeError(Exception):
    """It cannot be measured. ``str(error)`` says why."""


class Probe:
    """Measures one broker. ``async with Probe(...) as probe: run = await probe.measure(...)``.

    Its topics are non-persistent and have names that nobody else uses; the broker deletes them when nobody is connected any
    more.

    Args:
        broker: ``pulsar://…`` or ``pulsar+ssl://…``.
        security: token and TLS settings.
        requests: the namespace (``tenant/namespace``) of the request topics.
        responses: the namespace of the response topics.
    """

    def __init__(self, broker: str, security: Security, requests: str, responses: str) -> None:
        self._broker = broker
        self._security = security
        name = f"dispatch-loss-{secrets.token_hex(6)}"
        self.plain_topics, self.credit_topics = (
            (f"non-persistent://{requests}/{name}-{side}", f"non-persistent://{responses}/{name}-{side}")
            for side in ("plain", "credit")
        )
        self._open = contextlib.AsyncExitStack()
        self._service: asyncio.subprocess.Process | None = None
        self._spoke = False
        self._said: Any = None
        self._plain: PlainClient | None = None
        self._dispatcher: Dispatcher | None = None

    async def __aenter__(self) -> Probe:
        """Start everything.

        Raises:
            TransportError: no broker, not let in, no such namespace; the message names the fix.
            ProbeError: the service did not start, or cannot be reached.
        """
        from dispatch.devtools.lossprobe.plain_client import PlainClient
        from dispatch.transports.pulsar.handshake import shake_hands

        async with self._open as opening:
            await shake_hands(self._broker, self._security)  # here a wrong address is told in milliseconds
            await self._start_service(opening)
            self._plain = PlainClient(self._broker, self._security)
            opening.push_async_callback(self._plain.close)
            await self._plain.open(*self.plain_topics)
            self._dispatcher = await opening.enter_async_context(
                Dispatcher(open_transport(self._broker, security=self._security), _catalog(*self.credit_topics))
            )
            for side in Side:
                await self._reach(side)
            self._open = opening.pop_all()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._open.aclose()

    async def measure(self, side: Side, *, size: int, in_flight: int, calls: int | None, seconds: float | None) -> Run:
        """One run.

        Args:
            side: who exchanges.
            size: bytes of an answer.
            in_flight: calls at once.
            calls: how many at most; None: any number.
            seconds: how long calls are begun; None: until there were ``calls``.

        Raises:
            ProbeError: no answer came at all.
        """
        plain = self._plain
        assert plain is not None
        late = plain.late
        load = Load(lambda: self._call(side, size), in_flight=in_flight, calls=calls, seconds=seconds)
        run = await load.run()
        if plain.late > late:  # given up too soon: not lost
            run = Run(run.calls, run.lost - (plain.late - late), run.seconds, run.errors)
        if run.calls and run.lost == run.calls:
            raise ProbeError(f"{self._why_silent()} None of {run.calls:,} calls was answered.")
        return run

    async def _call(self, side: Side, size: int) -> None:
        assert self._plain is not None
        assert self._dispatcher is not None
        if side is Side.PLAIN:
            await self._plain.call(size)
            return
        result = await self._dispatcher.execute("echo", {"size": size}, timeout=CALL_S)
        if result.error is None:
            if len(result.text) != size:
                raise FailedCallError("wrong-answer")
        elif result.outcome is Outcome.TIMEOUT:
            raise LostCallError
        else:
            raise FailedCallError(result.error.type)

    async def _reach(self, side: Side) -> None:
        """The first call also opens the topics."""
        try:
            async with asyncio.timeout(REACH_S):
                await self._call(side, 1)
        except (TimeoutError, LostCallError, FailedCallError) as error:
            reason = error.type if isinstance(error, FailedCallError) else f"no answer within {REACH_S:g} s"
            raise ProbeError(f"{self._why_silent()} The first call failed: {reason}.") from None

    # -- the service's process ----------------------------------------------------------------------------------

    async def _start_service(self, opening: contextlib.AsyncExitStack) -> None:
        token = self._security.token() if callable(self._security.token) else self._security.token
        spec = {
            "url": self._broker,
            "security": {
                "token": token,
                "trust_certs": _text(self._security.trust_certs),
                "certificate": _text(self._security.certificate),
                "key": _text(self._security.key),
                "validate_hostname": self._security.validate_hostname,
            },
            "plain": self.plain_topics,
            "credit": self.credit_topics,
        }
        self._said = said = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the probe is
        opening.enter_context(said)
        self._service = service = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # whatever lies in the current folder is not imported
            "-m",
            "dispatch.devtools.lossprobe.echo_service",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=said,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [_HOME, os.environ.get("PYTHONPATH")]))},
            start_new_session=True,  # a terminal's Ctrl-C is for us; the service ends with its stdin
        )
        opening.push_async_callback(self._stop, service)
        assert service.stdin is not None
        assert service.stdout is not None
        service.stdin.write(json.dumps(spec).encode() + b"\n")
        line = b""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(START_S):
                line = await service.stdout.readline()
        if not line:
            raise ProbeError(f"{self._why_silent()} It was not ready within {START_S:g} s.")
        self._spoke = True
        answer = json.loads(line)
        if "error" in answer:
            raise TransportError(answer["error"]["type"], answer["error"]["message"], sent=False)

    async def _stop(self, service: asyncio.subprocess.Process) -> None:
        assert service.stdin is not None
        service.stdin.close()
        try:
            if self._spoke:  # until then it does not look at its stdin
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(STOP_S):
                        await service.wait()
        finally:  # also when whoever waits is cancelled
            if service.returncode is None:
                service.kill()  # its topics are non-persistent: nothing stays behind
                await service.wait()

    def _why_silent(self) -> str:
        service = self._service
        if service is None or service.returncode is None:
            return "The probe's service runs, but is not heard of: look at the connection with 'dispatch doctor'."
        self._said.seek(0)
        said = self._said.read().decode(errors="replace").strip()[-SAID_CHARS:]
        return f"The probe's service ended with status {service.returncode}{f': {said}' if said else ''}."


def _text(path: object) -> str | None:
    return None if path is None else str(path)


def _catalog(request_queue: str, response_queue: str) -> Catalog:
    return Catalog.of(
        [
            {
                "id": "echo",
                "request-queue": request_queue,
                "response-queue": response_queue,
                # What is lost is to be seen, not made good; and no guard may stop the probe.
                "policy": {"retry": 1, "breaker": None, "bulkhead": None},
            }
        ],
        [
            {
                "type": "tool-service",
                "name": "echo",
                "description": "Answers with so many bytes.",
                "service": "echo",
                "arguments": [{"name": "size", "type": "integer", "description": "How many."}],
            }
        ],
    )
