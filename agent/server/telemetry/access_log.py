"""A line in the log for each call."""

from __future__ import annotations

import logging

import grpc

from inferometer.agent.serving.observers import Call

_NS_PER_S = 1e9
_FAULTS = {
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.DATA_LOSS,
    grpc.StatusCode.UNAVAILABLE,
}
_FREQUENT = ("grpc.", "GET /v2/health/", "inferometer.v1.PredictService/Clock")
_log = logging.getLogger(__name__)


class AccessLog:
    """Logs each call when it has ended; satisfies ``CallObserver``.

    Faults of the agent are WARNING, calls that succeeded or were refused INFO, and those about its health, of
    reflection and of the clock DEBUG.
    """

    def call_began(self, call: Call) -> None:
        """Does nothing."""

    def call_ended(self, call: Call, code: grpc.StatusCode, duration_ns: int) -> None:
        """Logs the call."""
        if code is grpc.StatusCode.OK and not _log.isEnabledFor(logging.INFO):  # as nearly always
            return
        level = _level(call, code)
        if not _log.isEnabledFor(level):
            return
        duration_s = round(duration_ns / _NS_PER_S, 6)
        _log.log(
            level,
            "%s %s in %.3f ms",
            call.method,
            code.name,
            duration_ns / 1e6,
            extra={"code": code.name, "duration_s": duration_s, "model": call.model, "peer": call.peer},
        )


def _level(call: Call, code: grpc.StatusCode) -> int:
    if code in _FAULTS:
        return logging.WARNING
    return logging.DEBUG if call.method.startswith(_FREQUENT) else logging.INFO
