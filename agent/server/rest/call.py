"""A call that came over HTTP: its deadline, and its end when the client goes away."""

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
"""The deadline of a request, as gRPC writes it: up to 8 digits and a unit, such as ``500m`` for 500 ms."""
_TIMEOUT = re.compile(r"(\d{1,8})([HMSmun])", re.ASCII)
_UNITS_S = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}


class HttpCall(CallContext):
    """A call of a client over HTTP, in the task that answers it. For the event loop."""

    __slots__ = ("_deadline_s", "_loop", "_task", "_timer", "_why", "error", "path", "port", "scheme")

    def __init__(self, record: Call, metadata: Metadata, threads: Executor) -> None:
        super().__init__(record, metadata, threads)
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._deadline_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._why: Exception | None = None
        self.error: Exception | None = None
        """What the call has failed with."""
        self.scheme, self.path, self.port = "http", "", 0
        """How the request came: the path that it is for, and the port of the agent."""

    def span(self, listens_at: Attributes) -> SpanKind:
        """Returns the span of the call, with the attributes of where the agent listens for HTTP."""
        at = tuple((key, self.port if key == "server.port" else value) for key, value in listens_at)
        return http_server_call(self.record.method, self.scheme, self.path, self.record.peer, at)

    def http_status(self, error: BaseException) -> int | None:
        """Returns the status of a call that ends with an error; None where the client gets no response."""
        if isinstance(error, asyncio.CancelledError) and self._why is not None:
            error = self._why
        return http_status(error) if isinstance(error, Exception) else None

    def limit_time(self, header: str) -> None:
        """Sets the deadline; raises InputError where the header is not as ``TIMEOUT_HEADER`` has it."""
        found = _TIMEOUT.fullmatch(header)
        if found is None:
            raise InputError(f"header {TIMEOUT_HEADER} is up to 8 digits and one of {''.join(_UNITS_S)}")
        self._deadline_s = self._loop.time() + int(found[1]) * _UNITS_S[found[2]]
        self._timer = self._loop.call_at(
            self._deadline_s, self.cancel, DeadlineError("the deadline of the request has passed")
        )

    def deadline_ns(self, clock: Callable[[], int]) -> int | None:
        """Returns the call's deadline on a clock in nanoseconds; None where it has none."""
        if self._deadline_s is None:
            return None
        return clock() + round((self._deadline_s - self._loop.time()) * NS_PER_S)

    def cancel(self, why: Exception) -> None:
        """Ends the call with an error, wherever its task is; does nothing once it has ended."""
        if self._active and self._task is not None:
            self._active = False
            self._why = why
            self._task.cancel()

    @property
    def why_cancelled(self) -> Exception | None:
        """The error that the call was cancelled with."""
        return self._why

    def fail(self, status: Status, error: Exception | None = None) -> None:
        """Sets the status of a call that has no answer, and the error that it comes from."""
        super().fail(status, error)
        self.error = error

    def end(self) -> None:
        """Marks the call as answered, failed or cancelled."""
        super().end()
        if self._timer is not None:
            self._timer.cancel()
