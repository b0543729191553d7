"""Execution of one request: runs its tool and replies with the result, the stream, the error or a refusal."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from typing import Protocol

from dispatch._internal.user_code import ends_task, unwrap
from dispatch.errors import DispatchError, ErrorType
from dispatch.messaging.wire.codec import MalformedMessageError, Request, decode_request, result_text
from dispatch.messaging.wire.properties import Refusal, is_oversized
from dispatch.result import read_tool_error
from dispatch.serving.idempotency_keys import KEY_AGE_S, IdempotencyKeys, KeyedExecution, RecordedReplies
from dispatch.serving.inbound_request import InboundRequest
from dispatch.serving.reply_sender import ReplySender
from dispatch.serving.tool_service import Invoke
from dispatch.telemetry.logs import ExceptionLogger
from dispatch.telemetry.served_request_observer import RunResult, ServerObserver


class Refuse(Protocol):
    def __call__(self, work: InboundRequest, reason: str, detail: str = "") -> None: ...


class RequestRunner:
    """Runs requests of one service instance.

    Args:
        invoke: the tool.
        sender: sends the replies.
        keys: idempotency keys of the instance.
        refuse: answers a request with a refusal.
        observer: of the server.
        id: the service's id, for logs.
        now: the loop's clock.
        failures: logs what the tool raises unexpectedly.
    """

    def __init__(
        self,
        invoke: Invoke,
        sender: ReplySender,
        keys: IdempotencyKeys,
        refuse: Refuse,
        observer: ServerObserver,
        *,
        id: str,
        now: Callable[[], float],
        failures: ExceptionLogger,
    ) -> None:
        self._failures = failures
        self._invoke = invoke
        self._sender = sender
        self._keys = keys
        self._refuse = refuse
        self._id = id
        self._now = now
        self._observer = observer

    def _read(self, work: InboundRequest, now: float) -> Request | KeyedExecution | None:
        """Decode the request of ``work``, and claim its idempotency key. Return the first execution under the same key if
        there is one; None: the request is malformed and has been refused."""
        try:
            request = decode_request(work.payload)
        except MalformedMessageError as error:
            self._refuse(work, Refusal.INVALID_REQUEST, str(error))
            return None
        work.payload = b""
        work.replies.release_payload()
        key = work.idempotency_key
        if key is not None:
            if is_oversized(key):
                self._refuse(work, Refusal.INVALID_REQUEST, "the idempotency key is too long")
                return None
            keyed, is_first = self._keys.claim(request.user, key, now)
            if not is_first:
                return keyed
            work.keyed = keyed
            work.replies = RecordedReplies(work.replies, self._keys, keyed)
        return request

    async def answer_duplicate(self, work: InboundRequest, first: KeyedExecution) -> None:
        """Reply to ``work`` with the reply to the ``first`` request with its idempotency key, once that has ended."""
        work.observer = self._observer.start_request(work, self._now())
        try:
            async with asyncio.timeout_at(None if work.deadline == math.inf else work.deadline):
                await first.ended.wait()
            if not first.messages:
                self._refuse(work, Refusal.REPLY_EVICTED)
            await self._sender.stream_stored(work, first)
        except TimeoutError:
            self._refuse(
                work, Refusal.STOPPED, "The caller's deadline passed before the first request of its key ended."
            )
        except asyncio.CancelledError:
            self._on_cancel(work)
            raise
        finally:
            work.observer.on_end()

    def _on_cancel(self, work: InboundRequest) -> None:
        if work.is_cancelled or work.replies.hand_over():
            work.observer.on_error(ErrorType.CANCELLED)
            return
        stopped = (
            "The service stopped while the tool ran; the tool may have been executed. Check its effect before you call it "
            "again."
        )
        self._sender.send_error(work, ErrorType.CANCELLED, stopped, ErrorType.CANCELLED)

    def handle_deadline(self, work: InboundRequest) -> None:
        """Cancel the tool of ``work`` at its caller's deadline. Under an idempotency key only refuse the request: the tool
        runs on, for the next request with that key, until the key is too old to be stored."""
        runs_until = 0.0 if work.keyed is None else work.keyed.born + KEY_AGE_S
        if runs_until > work.stop_at and not work.is_refused:
            work.stop_at = runs_until
            self._refuse(
                work,
                Refusal.STOPPED,
                "The caller's deadline passed. The tool runs on: a request with the same idempotency key gets its reply.",
            )
        else:
            work.stop_at = math.inf
            work.is_expired = True
            work.stop()

    async def run(self, work: InboundRequest) -> KeyedExecution | None:
        """Run the tool of ``work``, and reply. Only a cancellation of the task is raised.

        Returns:
            The first execution under the same idempotency key, if there is one: then the tool does not run, and
            :meth:`answer_duplicate` replies.
        """
        began = self._now()
        request = self._read(work, began)
        if type(request) is not Request:
            assert not isinstance(request, Request)
            return request
        end: RunResult = "stopped"
        work.observer = self._observer.start_request(work, began)
        try:
            result = await self._invoke(request)
            if type(result) is str:
                self._sender.send_result(work, result)
            elif isinstance(result, AsyncIterator):
                await self._sender.send_stream(work, result)
            else:
                self._sender.send_result(work, result_text(result))
            end = "ok"
        except BaseException as raised:  # one that leaves the task, such as SystemExit, would end the event loop
            if ends_task(raised, work.task):
                if not isinstance(raised, asyncio.CancelledError):
                    raise
                if not work.is_expired:
                    self._on_cancel(work)
                    raise
                self._on_expiry(work)
            elif isinstance(raised, TimeoutError) and work.is_expired:
                # Not the tool's own error: the caller's deadline, which its own clock is about to notice too.
                self._on_expiry(work)
            else:
                end = "error"
                self._sender.send_error(work, *read_tool_error(raised))
                if not isinstance(unwrap(raised), DispatchError):
                    self._failures.log(f"{self._id} failed", raised, service=self._id)
        finally:
            work.observer.on_tool_end(end, self._now() - began)
            work.observer.on_end()
        return None

    def _on_expiry(self, work: InboundRequest) -> None:
        if not work.is_refused:
            self._refuse(work, Refusal.STOPPED)
