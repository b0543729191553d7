"""Execution of one request: runs its tool and replies with the result, the stream, the error or a refusal."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

from dispatch.errors import DispatchError, ErrorType
from dispatch.messaging.wire.codec import MalformedMessageError, Request, decode_request, result_text
from dispatch.messaging.wire.properties import Property, Refusal
from dispatch.serving.deduplication.deduplication import Deduplicator
from dispatch.serving.deduplication.idempotency_keys import KEY_AGE_S, KeyedExecution
from dispatch.serving.durable_requests import DurableRequests
from dispatch.serving.inbound_request import InboundRequest
from dispatch.serving.reply_sender import ReplySender
from dispatch.serving.tool_service import Invoke
from dispatch.telemetry.logs import log_exception
from dispatch.telemetry.served_request_observer import RunResult, ServerObserver

logger = logging.getLogger("dispatch.service")


class Refuse(Protocol):
    def __call__(self, work: InboundRequest, reason: str, detail: str = "") -> None: ...


class RequestRunner:
    """Runs requests of one service instance.

    Args:
        invoke: the tool.
        answers, recall, kept: of the instance.
        refuse: answers a request with a refusal.
        observer: of the server.
        id: the service's id, for logs.
        now: the loop's clock.
        content: texts of exceptions may be logged.
    """

    def __init__(
        self,
        invoke: Invoke,
        answers: ReplySender,
        recall: Deduplicator,
        kept: DurableRequests,
        refuse: Refuse,
        observer: ServerObserver,
        *,
        id: str,
        now: Callable[[], float],
        content: bool = False,
    ) -> None:
        self._content = content
        self._invoke = invoke
        self._answers = answers
        self._recall = recall
        self._kept = kept
        self._refuse = refuse
        self._id = id
        self._now = now
        self._observer = observer

    def read(self, work: InboundRequest) -> Request | KeyedExecution | None:
        """Read the request of ``work``, and claim its idempotency key.

        Returns:
            The decoded request, for :meth:`run`; or the first execution under the same idempotency key (see
            :meth:`answer_duplicate`); None: the request is malformed and has been refused.
        """
        try:
            request = decode_request(work.message.data())
        except MalformedMessageError as error:
            self._refuse(work, Refusal.INVALID_REQUEST, str(error))
            return None
        except Exception as error:  # any exception of the client library
            self._refuse(work, Refusal.INVALID_REQUEST, f"the request is not readable: {type(error).__name__}")
            return None
        key = work.properties.get(Property.IDEMPOTENCY_KEY)
        if key is not None and (first := self._recall.claim(work, request.user, key)) is not None:
            return first
        return request

    async def answer_duplicate(self, work: InboundRequest, first: KeyedExecution) -> None:
        """Reply to ``work`` with the replies of the ``first`` request with its idempotency key, once that has ended."""
        work.observer = self._observer.start_request(work.id, work.properties, self._now())
        try:
            async with asyncio.timeout_at(work.deadline):
                await first.ended.wait()
            if not first.messages:
                self._refuse(work, Refusal.REPLY_EVICTED)
            self._recall.replay(work, first)
        except TimeoutError:
            self._refuse(
                work, Refusal.STOPPED, "The caller's deadline passed before the first request of its key ended."
            )
        except asyncio.CancelledError:
            self._cancelled(work)
            raise
        finally:
            work.observer.on_end()

    def _cancelled(self, work: InboundRequest) -> None:
        if not work.abandoned and not self._kept.leave(work):
            stopped = (
                "The service stopped while the tool ran; the tool may have been executed. Check its effect before you "
                "call it again."
            )
            self._answers.fail(work, ErrorType.CANCELLED, stopped, ErrorType.CANCELLED)
        else:
            work.observer.on_error(ErrorType.CANCELLED)

    def _on_deadline(self, work: InboundRequest) -> None:
        """Refuse ``work``, which has an idempotency key, at its caller's deadline; its tool runs on."""
        detail = (
            "The caller's deadline passed. The tool runs on: a request with the same idempotency key gets its reply."
        )
        self._refuse(work, Refusal.STOPPED, detail)

    async def run(self, work: InboundRequest, request: Request) -> None:
        """Run ``work``'s tool, and answer. Only a cancellation of the task is raised.

        The tool is cancelled at the caller's deadline. Under an idempotency key it runs on, for the next request with
        that key, until the key is too old to be kept.
        """
        began = self._now()
        end: RunResult = "stopped"
        work.observer = self._observer.start_request(work.id, work.properties, began)
        stop_at, timer = work.deadline, None
        if work.keyed is not None and work.deadline is not None:
            stop_at = max(work.deadline, work.keyed.born + KEY_AGE_S)
            timer = asyncio.get_running_loop().call_at(work.deadline, self._on_deadline, work)
        try:
            async with asyncio.timeout_at(stop_at) as limit:
                result = await self._invoke(request)
                if type(result) is not str and isinstance(result, AsyncIterator):
                    await self._answers.stream(work, result)
                else:
                    await self._answers.result(work, result_text(result))
                end = "ok"
        except asyncio.CancelledError:
            self._cancelled(work)
            raise
        except DispatchError as error:
            end = "error"
            self._answers.fail(work, error.type, error.message)
        except BaseException as error:  # one that leaves the task, such as SystemExit, would end the event loop
            if isinstance(error, GeneratorExit) and not _is_running(work.task):
                raise  # the coroutine is being closed
            if isinstance(error, TimeoutError) and limit.expired():
                # Not the tool's own error: the caller's limit, which its own clock is about to notice too.
                if not work.refused:
                    self._refuse(work, Refusal.STOPPED)
                return
            end = "error"
            log_exception(logger, logging.DEBUG, f"{self._id} failed", error, content=self._content)
            self._answers.fail(work, type(error).__name__, error)
        finally:
            if timer is not None:
                timer.cancel()
            work.observer.on_tool_end(end, self._now() - began)
            work.observer.on_end()


def _is_running(task: asyncio.Task[Any] | None) -> bool:
    try:
        return task is not None and asyncio.current_task() is task
    except RuntimeError:  # no loop is running
        return False
