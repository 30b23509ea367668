"""The limits of a served agent: on requests, images, streams and connections."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields

from inferometer.agent.preprocessing.image_decoder import MAX_PIXELS
from inferometer.manifests.errors import ConfigurationError, InputError, SessionLimitError

MAX_INPUTS = 10_000
_HANDSHAKE_MS = 20_000
_MS_PER_S = 1000


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits that an agent keeps. None stands for no limit, where there may be none.

    Attributes:
        max_inputs: The most inputs of one request, and the largest batch of a dataset.
        max_pixels: The most pixels of an image that is decoded; a small file can claim to hold many.
        max_streams: The most streams that are served at once; each takes a thread. None means half of the
            threads.
        max_client_streams: The most streams of one client.
        max_client_rps: Requests that one client may send in a second, on average. A call that comes sooner is
            refused; the messages of a stream wait.
        client_burst: Requests that one client may send at once, after it has sent none for a while. None
            means as many as in a second.
        max_connections: The most connections that are open at once.
        max_connection_age_s: How long a connection lives, in seconds, before its client has to make
            another one; calls under way are finished.
        max_connection_idle_s: How long a connection may be unused, in seconds.

    Raises:
        ConfigurationError: A limit makes no sense.
    """

    max_inputs: int = MAX_INPUTS
    max_pixels: int = MAX_PIXELS
    max_streams: int | None = None
    max_client_streams: int | None = None
    max_client_rps: float | None = None
    client_burst: int | None = None
    max_connections: int | None = None
    max_connection_age_s: float | None = None
    max_connection_idle_s: float | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and not 0 < value < float("inf"):
                raise ConfigurationError(f"{field.name} is {value}; it must be above 0")
        if self.max_pixels > MAX_PIXELS:
            raise ConfigurationError(f"max_pixels is {self.max_pixels}; at most {MAX_PIXELS} are decoded")
        if self.client_burst is not None and self.max_client_rps is None:
            raise ConfigurationError("client_burst is given without max_client_rps, which it belongs to")

    def check_inputs(self, count: int) -> None:
        """Raises InputError where a request has more inputs than it may."""
        if count > self.max_inputs:
            raise InputError(
                f"the batch has {count} inputs, and the agent takes at most {self.max_inputs}; "
                "use a smaller --batch_size here, or serve it with a larger --max_inputs"
            )

    def streams_of(self, workers: int) -> int:
        """Returns how many of the threads that answer calls may be taken by streams.

        Raises ConfigurationError if none would be left for other calls.
        """
        if self.max_streams is None:
            return max(1, workers // 2)
        if self.max_streams >= workers:
            raise ConfigurationError(
                f"max_streams is {self.max_streams}; it must be below {workers}, the threads for all calls"
            )
        return self.max_streams

    def channel_options(self) -> tuple[tuple[str, int], ...]:
        """Returns the limits that gRPC itself keeps."""
        found = [("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS)]
        if self.max_connections is not None:
            found.append(("grpc.max_allowed_incoming_connections", self.max_connections))
        if self.max_connection_age_s is not None:
            found.append(("grpc.max_connection_age_ms", int(self.max_connection_age_s * _MS_PER_S)))
        if self.max_connection_idle_s is not None:
            found.append(("grpc.max_connection_idle_ms", int(self.max_connection_idle_s * _MS_PER_S)))
        return tuple(found)


class StreamLimit:
    """Admits a limited number of streams, of all services together. Thread-safe.

    A stream of predictions takes a thread for as long as it lasts.
    """

    def __init__(self, streams: int) -> None:
        self._streams = streams
        self._free = threading.Semaphore(streams)

    @contextmanager
    def one(self) -> Iterator[None]:
        """Held while a stream is served; raises SessionLimitError if as many are served as may be."""
        if not self._free.acquire(blocking=False):
            raise SessionLimitError(f"the agent serves its limit of {self._streams} streams; try again later")
        try:
            yield
        finally:
            self._free.release()
