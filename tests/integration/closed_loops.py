"""Clients in a closed loop over each door of an agent, who go on until nobody listens any more."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress

import grpc
from agent_client import BATCH, TIMEOUT_S, Client, v1_request
from rest_client import json_input, raw_request

from inferometer.protos.inference.v2 import grpc_service_pb2 as v2
from inferometer.protos.inferometer.v1 import predict_pb2

_BODY = json.dumps({"inputs": [json_input(BATCH)]}).encode()
REQUEST = raw_request(
    f"POST /v2/models/Mean/infer HTTP/1.1\nHost: localhost\nContent-Length: {len(_BODY)}", _BODY
)
_PAUSE_S = 0.001
"""After a refusal: who asks again at once asks thousands of times a second."""


class ClosedLoops:
    """``count`` clients, by turns over the agent's own protocol, the Open Inference Protocol, and HTTP.

    Each sends a request, waits for its answer, and sends the next, also after a refusal. ``outcomes`` counts
    the answers by their door and status; a request that is cut has the name of an exception there.
    """

    def __init__(self, address: str, http_url: str, count: int) -> None:
        self._address = address
        self._http = http_url.rpartition("/")[2].rsplit(":", 1)
        kinds = (self._native, self._v2, self._rest)
        self._clients = [kinds[number % len(kinds)] for number in range(count)]
        self.has_stopped = False
        self.outcomes: Counter[tuple[str, object]] = Counter()

    async def run(self, stop: Callable[[], Awaitable[None]]) -> Counter[tuple[str, object]]:
        """Runs the clients, and stops the agent once each is answered; returns what they saw."""
        ready = [asyncio.Event() for _ in self._clients]
        tasks = [
            asyncio.create_task(client(event)) for client, event in zip(self._clients, ready, strict=True)
        ]
        for event in ready:
            await asyncio.wait_for(event.wait(), TIMEOUT_S)
        await stop()
        self.has_stopped = True
        await asyncio.wait_for(asyncio.gather(*tasks), TIMEOUT_S)
        return self.outcomes

    def _count(self, door: str, outcome: object, ready: asyncio.Event) -> None:
        self.outcomes[door, outcome] += 1
        ready.set()

    async def _native(self, ready: asyncio.Event) -> None:
        async with self._channel() as channel:
            client = Client(channel)
            opened = await client.v1.Open(predict_pb2.OpenRequest(model_name="Mean"), timeout=TIMEOUT_S)
            request = v1_request(opened.session_id)
            await self._call("native", lambda: client.v1.Predict(request, timeout=TIMEOUT_S), ready)

    async def _v2(self, ready: asyncio.Event) -> None:
        async with self._channel() as channel:
            tensor = v2.ModelInferRequest.InferInputTensor(name="data", datatype="FP32", shape=BATCH.shape)
            request = v2.ModelInferRequest(
                model_name="Mean", inputs=[tensor], raw_input_contents=[BATCH.tobytes()]
            )
            infer = Client(channel).v2.ModelInfer
            await self._call("v2", lambda: infer(request, timeout=TIMEOUT_S), ready)

    async def _call(self, door: str, call: Callable[[], Awaitable[object]], ready: asyncio.Event) -> None:
        while not self.has_stopped:
            code = grpc.StatusCode.OK
            try:
                await call()
            except grpc.aio.AioRpcError as error:
                code = error.code()
                await asyncio.sleep(_PAUSE_S)
            self._count(door, code, ready)

    def _channel(self) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(self._address, options=[("grpc.use_local_subchannel_pool", 1)])

    async def _rest(self, ready: asyncio.Event) -> None:
        while True:
            try:
                reader, writer = await asyncio.open_connection(*self._http)
            except ConnectionRefusedError:
                return
            try:
                await self._ask(reader, writer, ready)
            except (ConnectionError, asyncio.IncompleteReadError) as error:
                self._count("rest", type(error).__name__, ready)
            finally:
                writer.close()
                with suppress(ConnectionError):
                    await writer.wait_closed()

    async def _ask(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ready: asyncio.Event
    ) -> None:
        """Sends request after request, until an answer says that it is the last of its connection."""
        head = b""
        while b"connection: close" not in head:
            writer.write(REQUEST)
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
            await reader.readexactly(length)
            self._count("rest", int(head[9:12]), ready)
        await asyncio.sleep(_PAUSE_S)
