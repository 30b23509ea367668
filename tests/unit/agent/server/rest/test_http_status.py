"""The table of HTTP statuses is complete, and agrees with that of gRPC."""

from __future__ import annotations

import grpc
import pytest

from inferometer.agent.protocol.status import (
    HTTP_STATUSES,
    STATUS_CODES,
    HttpRequestError,
    NotOfferedError,
    http_status,
    status_code,
)
from inferometer.manifests import errors

TREE = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.InferometerError)
]
CLIENT_FAULTS = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND}
CANCELLED = 499


@pytest.mark.parametrize("kind", TREE, ids=lambda kind: kind.__name__)
def test_every_error_has_a_status(kind: type[errors.InferometerError]) -> None:
    assert kind in HTTP_STATUSES
    assert http_status(kind("why")) == HTTP_STATUSES[kind]


def test_the_table_has_the_errors_that_gRPC_has() -> None:
    assert set(HTTP_STATUSES) == set(STATUS_CODES)


@pytest.mark.parametrize("kind", TREE, ids=lambda kind: kind.__name__)
def test_fault_of_the_client_is_one_in_both_doors(kind: type[errors.InferometerError]) -> None:
    status, code = HTTP_STATUSES[kind], status_code(kind("why"))
    if code in CLIENT_FAULTS:
        assert status == (404 if code is grpc.StatusCode.NOT_FOUND else 400)
    if code is grpc.StatusCode.UNAVAILABLE:
        assert status == 503
    if code is grpc.StatusCode.INTERNAL:
        assert status == 500
    assert (status == CANCELLED) == (code is grpc.StatusCode.CANCELLED)


def test_other_errors_have_a_status_too() -> None:
    class Narrower(errors.QueueFullError):
        pass

    assert http_status(Narrower("why")) == 503
    assert http_status(HttpRequestError(413, "why")) == 413
    assert http_status(NotOfferedError("why")) == 501
    assert http_status(ZeroDivisionError("why")) == 500
