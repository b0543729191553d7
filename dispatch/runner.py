"""Runs the tool of one request, and answers with its result, its stream, its error or a refusal."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from dispatch.answers import Answers
from dispatch.kept import KeptRequests
from dispatch.messages import MalformedMessage, Property, Refusal, decode_request, result_text
from dispatch.outcome import DispatchError
from dispatch.recall import Recall
from dispatch.service import Invoke
from dispatch.telemetry.names import ErrorType
from dispatch.work import Work

if TYPE_CHECKING:
    from dispatch.telemetry.lean import Timing
    from dispatch.telemetry.serving import ServiceTracing

logger = logging.getLogger("dispatch.service")


class Refuse(Protocol):
    def __call__(self, work: Work, reason: str, detail: str = "") -> None: ...


class RequestRunner:
    """Runs requests of one service instance.

    Args:
        invoke: the tool.
        answers, recall, kept: of the instance.
        refuse: answers a request with a refusal.
        id: the service's id, for logs.
        now: the loop's clock.
    """

    def __init__(
        self,
        invoke: Invoke,
        answers: Answers,
        recall: Recall,
        kept: KeptRequests,
        refuse: Refuse,
        *,
        id: str,
        now: Callable[[], float],
    ) -> None:
        self._invoke = invoke
        self._answers = answers
        self._recall = recall
        self._kept = kept
        self._refuse = refuse
        self._id = id
        self._now = now
        self.tracing: ServiceTracing | None = None
        self.durations: Mapping[str, Timing] | None = None

    async def run(self, work: Work) -> None:
        """Run ``work``'s tool until its caller's deadline, and answer. Only a cancellation of the task is raised."""
        try:
            request = decode_request(work.message.data())
        except MalformedMessage as error:
            self._refuse(work, Refusal.INVALID_REQUEST, str(error))
            return
        except Exception as error:  # whatever a message makes the client library raise
            self._refuse(work, Refusal.INVALID_REQUEST, f"the request is not readable: {type(error).__name__}")
            return
        began, end = self._now(), "stopped"
        if self.tracing is not None:
            work.trace = self.tracing.process(work.id, work.properties, began)
            if work.trace is not None:
                work.trace.enter()
        try:
            async with asyncio.timeout_at(work.deadline) as limit:
                key = work.properties.get(Property.IDEMPOTENCY_KEY)
                if key is not None and await self._answered_before(work, request.user, key):
                    return
                result = await self._invoke(request)
                if type(result) is not str and isinstance(result, AsyncIterator):
                    await self._answers.stream(work, result)
                else:
                    await self._answers.result(work, result_text(result))
                end = "ok"
        except asyncio.CancelledError:
            if not work.abandoned and not self._kept.leave(work):
                stopped = "The service stopped before the tool had finished."
                self._answers.fail(work, "cancelled", stopped, ErrorType.CANCELLED)
            elif work.trace is not None:
                work.trace.failed(ErrorType.CANCELLED)
            raise
        except DispatchError as error:
            end = "error"
            self._answers.fail(work, error.type, error.message)
        except BaseException as error:  # one that leaves the task, such as SystemExit, would end the event loop
            if isinstance(error, GeneratorExit) and not _is_running(work.task):
                raise  # the coroutine is being closed
            if isinstance(error, TimeoutError) and limit.expired():
                # Not the tool's own error: the caller's limit, which its own clock is about to notice too.
                self._refuse(work, Refusal.STOPPED)
                return
            end = "error"
            logger.debug("%s failed", self._id, exc_info=error)
            self._answers.fail(work, type(error).__name__, error)
        finally:
            if work.trace is not None:
                work.trace.ended()
            if self.durations is not None:
                self.durations[end].observe(self._now() - began)

    async def _answered_before(self, work: Work, user: str, key: str) -> bool:
        """Was this idempotency key here before? Then the answer of the first request with it is the answer."""
        first = await self._recall.first(work, user, key)
        if first is None:
            return False
        if not first.messages:
            self._refuse(work, Refusal.FORGOTTEN)
        self._recall.replay(work, first)
        return True


def _is_running(task: asyncio.Task[None] | None) -> bool:
    try:
        return task is not None and asyncio.current_task() is task
    except RuntimeError:  # no loop is running
        return False
