"""Requests over HTTP whose kept connection is lost: which are sent again or fail, and what a user is told."""

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial

import grpc
import pytest

from inferometer.client.remote.address import AgentAddress
from inferometer.client.remote.rest.responses import HttpFailure
from inferometer.client.remote.rest.sockets import (
    CROSSING_S,
    Endpoint,
    Exchanges,
    Flights,
    HttpCall,
    _Connection,
)

REQUEST = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]"
WAIT_S = 30.0
Ask = Callable[[], bytes]
Way = Callable[[Endpoint], AbstractContextManager[Ask]]


@contextmanager
def answering(*connections: tuple[bytes | float, ...]) -> Iterator[Endpoint]:
    """A server that answers the requests of each of its connections in turn, and then closes it.

    A number is a request that is not answered, and how many seconds the server takes not to.
    """
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with suppress(OSError):
                for answers in connections:
                    connection, _ = listening.accept()
                    with connection:
                        for answer in answers:
                            connection.recv(65536)
                            if isinstance(answer, float):
                                time.sleep(answer)
                            else:
                                connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield Endpoint(AgentAddress("127.0.0.1", listening.getsockname()[1]), None)
        with suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)
    thread.join(WAIT_S)


@contextmanager
def waiting(endpoint: Endpoint) -> Iterator[Ask]:
    exchanges = Exchanges(endpoint, "it")
    yield partial(exchanges.exchange, REQUEST, WAIT_S)
    exchanges.close()


@contextmanager
def flying(endpoint: Endpoint) -> Iterator[Ask]:
    flights = Flights(endpoint)
    yield lambda: flights.begin(REQUEST, WAIT_S).result(WAIT_S)
    flights.close()


WAYS = pytest.mark.parametrize("way", [waiting, flying])


@WAYS
def test_a_request_without_any_answer_is_sent_again_and_told(
    way: Way, caplog: pytest.LogCaptureFixture
) -> None:
    with answering((ANSWER, b""), (ANSWER, b""), (ANSWER,)) as endpoint:
        with way(endpoint) as ask:
            assert [ask() for _ in range(3)] == [ANSWER] * 3
        assert f"server 127.0.0.1:{endpoint.port}: closed kept connections" in caplog.text
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert caplog.text.endswith("requests sent again: 2\n")


@WAYS
@pytest.mark.parametrize("end", [b"H", b"HTTP/1.1 200 OK\r\ncontent-le", ANSWER[:-1], 3 * CROSSING_S])
def test_a_request_that_the_server_may_have_begun_is_not_sent_again(
    way: Way, end: bytes | float, caplog: pytest.LogCaptureFixture
) -> None:
    with answering((ANSWER, end), (ANSWER,)) as endpoint, way(endpoint) as ask:
        assert ask() == ANSWER
        with pytest.raises(HttpFailure, match="the connection was closed"):
            ask()
        assert ask() == ANSWER
    assert not caplog.records


@WAYS
def test_a_request_on_a_new_connection_is_not_sent_again(way: Way, caplog: pytest.LogCaptureFixture) -> None:
    with answering((b"",), (ANSWER,)) as endpoint, way(endpoint) as ask:
        with pytest.raises(HttpFailure) as raised:
            ask()
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
        assert ask() == ANSWER
    assert not caplog.records


class LostAtOnce(_Connection):
    """A connection whose end is noticed as soon as it has a call."""

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name == "call" and value is not None and hasattr(self, "_socket"):
            self.close()


def test_a_connection_that_is_lost_while_it_sends_has_its_request_sent_again() -> None:
    with answering((ANSWER, ANSWER), (ANSWER,)) as endpoint:
        flights = Flights(endpoint)
        first, call = HttpCall(None), HttpCall(None)
        connection = LostAtOnce(flights, first, REQUEST)
        connection.open(OSError())
        assert first.result(WAIT_S) == ANSWER
        connection.use(call, REQUEST)
        assert call.result(WAIT_S) == ANSWER
        assert endpoint.resent == 1
        flights.close()
