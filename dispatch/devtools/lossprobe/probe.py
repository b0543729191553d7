"""The probe: topics of its own on one broker, both services in a separate process, both clients in this one."""

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
from dispatch.devtools.lossprobe.results import RunResult, Variant
from dispatch.dispatcher import Dispatcher
from dispatch.errors import Outcome, TransportError
from dispatch.transports import Security, open_transport

if TYPE_CHECKING:
    from dispatch.devtools.lossprobe.probe_client import ProbeClient

START_S = 20.0
"""Timeout for the start of the service process: an interpreter and some topics, seconds on a busy machine."""
FIRST_CALL_S = 10.0
"""Timeout of the first call, which opens the topics."""
STOP_S = 10.0
"""Timeout for the end of the service process: closing its connections takes at most 6 s."""
CALL_S = 60.0
"""Timeout of a call with sessions; a silence ends it earlier (:mod:`.load`)."""
STDERR_CHARS = 2_000
_HOME = str(Path(dispatch.__file__).resolve().parent.parent)


class ProbeError(Exception):
    """The measurement is not possible; the message names the reason."""


class Probe:
    """Measures one broker. ``async with Probe(...) as probe: run = await probe.measure(...)``.

    Its topics are non-persistent with unique names; the broker deletes them after the last client disconnects.

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
        self.plain_topics, self.session_topics = (
            (f"non-persistent://{requests}/{name}-{variant}", f"non-persistent://{responses}/{name}-{variant}")
            for variant in ("plain", "session")
        )
        self._open = contextlib.AsyncExitStack()
        self._service: asyncio.subprocess.Process | None = None
        self._has_answered = False
        self._stderr: Any = None
        self._plain: ProbeClient | None = None
        self._dispatcher: Dispatcher | None = None

    async def __aenter__(self) -> Probe:
        """Start service and clients.

        Raises:
            TransportError: the broker is not reachable, rejects the token, or lacks a namespace; the message names the fix.
            ProbeError: the service did not start or is not reachable.
        """
        from dispatch.devtools.lossprobe.probe_client import ProbeClient
        from dispatch.transports.pulsar.handshake import shake_hands

        async with self._open as opening:
            await shake_hands(self._broker, self._security)  # finds a wrong address within milliseconds
            await self._start_service(opening)
            self._plain = ProbeClient(self._broker, self._security)
            opening.push_async_callback(self._plain.close)
            await self._plain.open(*self.plain_topics)
            self._dispatcher = await opening.enter_async_context(
                Dispatcher(open_transport(self._broker, security=self._security), _catalog(*self.session_topics))
            )
            for variant in Variant:
                await self._make_first_call(variant)
            self._open = opening.pop_all()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._open.aclose()

    async def measure(
        self, variant: Variant, *, size: int, in_flight: int, calls: int | None, seconds: float | None
    ) -> RunResult:
        """Make one run.

        Args:
            variant: the measured exchange.
            size: reply size in bytes.
            in_flight: concurrent calls.
            calls: maximum number of calls; None: no limit.
            seconds: duration in which calls are started; None: until ``calls`` were made.

        Raises:
            ProbeError: no call got a reply.
        """
        plain = self._plain
        assert plain is not None
        late = plain.late
        load = Load(lambda: self._call(variant, size), in_flight=in_flight, calls=calls, seconds=seconds)
        run = await load.run()
        if plain.late > late:  # replies after the grace period: not lost
            run = RunResult(run.calls, run.lost - (plain.late - late), run.seconds, run.errors)
        if run.calls and run.lost == run.calls:
            raise ProbeError(f"{self._describe_service()} None of {run.calls:,} calls got a reply.")
        return run

    async def _call(self, variant: Variant, size: int) -> None:
        assert self._plain is not None
        assert self._dispatcher is not None
        if variant is Variant.PLAIN:
            await self._plain.call_sized(size)
            return
        result = await self._dispatcher.execute("echo", {"size": size}, timeout=CALL_S)
        if result.error is None:
            if len(result.text) != size:
                raise FailedCallError("wrong-answer")
        elif result.outcome is Outcome.TIMEOUT:
            raise LostCallError
        else:
            raise FailedCallError(result.error.type)

    async def _make_first_call(self, variant: Variant) -> None:
        """Make the first call, which opens the topics."""
        try:
            async with asyncio.timeout(FIRST_CALL_S):
                await self._call(variant, 1)
        except (TimeoutError, LostCallError, FailedCallError) as error:
            reason = error.type if isinstance(error, FailedCallError) else f"no reply within {FIRST_CALL_S:g} s"
            raise ProbeError(f"{self._describe_service()} The first call failed: {reason}.") from None

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
            "session": self.session_topics,
        }
        self._stderr = stderr = tempfile.TemporaryFile()  # noqa: SIM115 - the probe closes it
        opening.enter_context(stderr)
        self._service = service = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # modules in the current folder are not imported
            "-m",
            "dispatch.devtools.lossprobe.echo_service",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=stderr,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [_HOME, os.environ.get("PYTHONPATH")]))},
            start_new_session=True,  # Ctrl-C must reach the probe only; the service ends with its stdin
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
            raise ProbeError(f"{self._describe_service()} It was not ready within {START_S:g} s.")
        self._has_answered = True
        answer = json.loads(line)
        if "error" in answer:
            raise TransportError(answer["error"]["type"], answer["error"]["message"], sent=False)

    async def _stop(self, service: asyncio.subprocess.Process) -> None:
        assert service.stdin is not None
        service.stdin.close()
        try:
            if self._has_answered:  # before its status it does not read stdin
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(STOP_S):
                        await service.wait()
        finally:  # also on cancellation
            if service.returncode is None:
                service.kill()  # its topics are non-persistent and vanish
                await service.wait()

    def _describe_service(self) -> str:
        service = self._service
        if service is None or service.returncode is None:
            return "The probe's service runs but does not reply: check the connection with 'dispatch doctor'."
        self._stderr.seek(0)
        stderr = self._stderr.read().decode(errors="replace").strip()[-STDERR_CHARS:]
        return f"The probe's service ended with status {service.returncode}{f': {stderr}' if stderr else ''}."


def _text(path: object) -> str | None:
    return None if path is None else str(path)


def _catalog(request_queue: str, response_queue: str) -> Catalog:
    return Catalog.of(
        [
            {
                "id": "echo",
                "request-queue": request_queue,
                "response-queue": response_queue,
                # Losses must be visible, so no retries; guards must not reject calls.
                "policy": {"retry": 1, "breaker": None, "bulkhead": None},
            }
        ],
        [
            {
                "type": "tool-service",
                "name": "echo",
                "description": "Replies with a number of bytes.",
                "service": "echo",
                "arguments": [{"name": "size", "type": "integer", "description": "Number of bytes.", "required": True}],
            }
        ],
    )
