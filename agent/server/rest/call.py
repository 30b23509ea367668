"""An HTTP call: its deadline, and its cancellation when the client disconnects."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from concurrent.futures import Executor

from inferometer.agent.protocol.status import Status
from inferometer.agent.server.calls import NS_PER_S, CallContext, Metadata
from inferometer.agent.server.rest.status import http_status
from inferometer.agent.serving.observers import Call
from inferometer.agent.tracing.calls import http_server_call
from inferometer.agent.tracing.span import Attributes, SpanKind
from inferometer.manifests.errors import DeadlineError, InputError

TIMEOUT_HEADER = "grpc-timeout"
"""The header with a request's timeout, in gRPC's format: up to 8 digits and a unit; ``500m`` is 500 ms."""
_TIMEOUT = re.compile(r"(\d{1,8})([HMSmun])", re.ASCII)
_UNITS_S = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}


class HttpCall(CallContext):
    """A call of an HTTP client, in the task that answers it. For use on the event loop."""

    __slots__ = ("_deadline_s", "_loop", "_task", "_timer", "_why", "error", "path", "port", "scheme")

    def __init__(self, record: Call, metadata: Metadata, threads: Executor) -> None:
        super().__init__(record, metadata, threads)
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._deadline_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._why: Exception | None = None
        self.error: Exception | None = None
        """The error that the call failed with."""
        self.scheme, self.path, self.port = "http", "", 0
        """The attributes of the request: its path, and the port of the agent."""

    def span(self, listens_at: Attributes) -> SpanKind:
        """Returns the span of the call, with the attributes of where the agent listens for HTTP."""
        at = tuple((key, self.port if key == "server.port" else value) for key, value in listens_at)
        return http_server_call(self.record.method, self.scheme, self.path, self.record.peer, at)

    def http_status(self, error: BaseException) -> int | None:
        """Returns the status of a call that fails with this error.

        Returns None if the client receives no response.
        """
        if isinstance(error, asyncio.CancelledError) and self._why is not None:
            error = self._why
        return http_status(error) if isinstance(error, Exception) else None

    def limit_time(self, header: str) -> None:
        """Sets the deadline.

        Raises InputError if the header is not in the format of ``TIMEOUT_HEADER``.
        """
        found = _TIMEOUT.fullmatch(header)
        if found is None:
            raise InputError(f"header {TIMEOUT_HEADER} is up to 8 digits and one of {''.join(_UNITS_S)}")
        self._deadline_s = self._loop.time() + int(found[1]) * _UNITS_S[found[2]]
        self._timer = self._loop.call_at(
            self._deadline_s, self.cancel, DeadlineError("the deadline of the request has passed")
        )

    def deadline_ns(self, clock: Callable[[], int]) -> int | None:
        """Returns the call's deadline in nanoseconds on ``clock``; None if it has no deadline."""
        if self._deadline_s is None:
            return None
        return clock() + round((self._deadline_s - self._loop.time()) * NS_PER_S)

    def cancel(self, why: Exception) -> None:
        """Cancels the call's task with an error; has no effect after the call has ended."""
        if self._active and self._task is not None:
            self._active = False
            self._why = why
            self._task.cancel()

    @property
    def why_cancelled(self) -> Exception | None:
        """The error with which the call was cancelled."""
        return self._why

    def fail(self, status: Status, error: Exception | None = None) -> None:
        """Sets the status of a failed call, and the error that caused it."""
        super().fail(status, error)
        self.error = error

    def end(self) -> None:
        """Marks the call as answered, failed or cancelled."""
        super().end()
        if self._timer is not None:
            self._timer.cancel()
