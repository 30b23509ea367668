"""Calls in traces: the processes on both sides, and what a request of the Open Inference Protocol leaves."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial

import pytest
import tritonclient.grpc as triton
import tritonclient.http as triton_http
from fake_framework import wait_for
from open_inference import images, tensor_of
from rest_client import Rest, json_input
from test_remote_agent import tensor_input
from trace_collectors import COLLECTORS, HOST, Seen
from tritonclient.utils import InferenceServerException

from inferometer.agent.inference.registry import Registry
from inferometer.agent.server.native.call_tracing import ServerTracing, agent_resource
from inferometer.agent.server.server import AgentServer, ServerOptions
from inferometer.agent.serving.batching import BatchingOptions
from inferometer.agent.serving.served_models import ServingOptions
from inferometer.agent.tracing.exporting import TraceAddress, TraceExport
from inferometer.agent.tracing.recorder import (
    SpanKind,
    SpanRecorder,
    TraceContext,
    TraceLevel,
    TraceScope,
    traced,
)
from inferometer.client.remote.native.agent import open_remote_agent
from inferometer.client.remote.pool import open_agent_pool
from inferometer.manifests.catalog import Catalog

KINDS = pytest.mark.parametrize("scheme", COLLECTORS, ids=lambda scheme: scheme.strip(":/") or "grpc")
TRACE_IDS = [f"{number:032x}" for number in (0xABC, 0xDEF)]
CALLER_ID = 0xB7AD6B7169203331
INFER = "inference.GRPCInferenceService/ModelInfer"
ROOT = SpanKind("evaluation", TraceLevel.APPLICATION_TRACE)


def traceparent(trace_id, flags="01"):
    return {"traceparent": f"00-{trace_id}-{CALLER_ID:016x}-{flags}"}


def batches(count):
    return [[tensor_input(str(number), number)] for number in range(count)]


def collected(scheme, run):
    """What a collector saw of a traced run in this process, whose scope ``run`` gets."""
    recorder, seen = SpanRecorder(TraceContext.new(), TraceLevel.MODEL_TRACE), Seen()
    with COLLECTORS[scheme](seen) as port:
        with traced(TraceScope.top(recorder), ROOT) as scope:
            run(scope)
        export = TraceExport.open(TraceAddress.parse(f"{scheme}{HOST}:{port}"))
        export.send(recorder.context.trace_id, recorder.chunks())
        assert export.close(60).undelivered == 0
        seen.wait_for(lambda: len(seen.spans) == len(recorder))
    return seen.spans


def above(spans, span):
    """The names of the spans from the root to one."""
    parent = spans.get(span.parent_id)
    return [*above(spans, parent), span.name] if parent else [span.name]


@KINDS
def test_client_and_agent_are_two_processes_of_one_trace(spawn_agent, scheme):
    agent = spawn_agent()

    def run(scope):
        with open_remote_agent(agent.address, "Mean", trace=scope) as remote:
            list(remote.predict_batches(batches(2), scope))

    spans = collected(scheme, run)

    by_service = {span.resource["service.name"]: span.resource for span in spans.values()}
    client, server = by_service["inferometer"], by_service["inferometer-agent"]
    assert len({span.resource["service.instance.id"] for span in spans.values()}) == 2
    assert server["process.pid"] == agent.process.pid != client["process.pid"]
    assert server["host.name"] == client["host.name"]
    of_agent = [span for span in spans.values() if span.resource["service.name"] == "inferometer-agent"]
    assert {above(spans, span)[0] for span in of_agent} == {"evaluation"}
    stream = "inferometer.v1.PredictService/PredictStream"
    paths = Counter("/".join(above(spans, span)) for span in of_agent)
    assert paths[f"evaluation/{stream}/{stream}/predict_step/predict"] == 2
    roles = Counter((span.role, span.resource["service.name"]) for span in spans.values())
    assert roles["client", "inferometer"] == roles["server", "inferometer-agent"] == 2
    assert roles["client", "inferometer-agent"] == roles["server", "inferometer"] == 0


def test_a_call_has_the_names_of_opentelemetrys_conventions(start_agent):
    server = start_agent()

    def run(scope):
        open_remote_agent(server.address, "Mean", trace=scope).close()

    spans = collected("", run).values()

    shared = {
        "rpc.system": "grpc",
        "rpc.service": "inferometer.v1.PredictService",
        "rpc.method": "Open",
        "rpc.grpc.status_code": 0,
        "server.address": HOST,
        "server.port": int(server.address.rpartition(":")[2]),
        "inferometer.trace_level": "APPLICATION_TRACE",
    }
    [calling] = [span for span in spans if span.role == "client"]
    [answering] = [span for span in spans if span.role == "server"]
    assert calling.attributes == shared
    assert answering.attributes.pop("client.port") > 0
    assert answering.attributes == {**shared, "client.address": HOST}


def test_two_agents_of_a_pool_can_be_told_apart(spawn_agent):
    agents = [spawn_agent(), spawn_agent()]

    def run(scope):
        addresses = [agent.address for agent in agents]
        open_one = partial(open_remote_agent, model_name="Mean", trace=scope)
        with closing(open_agent_pool(addresses, open_one)) as pool:
            list(pool.predict_batches(batches(40), scope))

    spans = collected("", run)

    resources = {span.resource["service.instance.id"]: span.resource for span in spans.values()}
    assert len(resources) == 3
    pids = {r["process.pid"] for r in resources.values() if r["service.name"] == "inferometer-agent"}
    assert pids == {agent.process.pid for agent in agents}


def test_a_call_that_fails_says_how(start_agent):
    server = start_agent()

    def run(scope):
        with pytest.raises(Exception, match="Nobody"):
            open_remote_agent(server.address, "Nobody", trace=scope)

    spans = collected("", run).values()

    [calling] = [span for span in spans if span.role == "client"]
    assert calling.failed
    assert calling.attributes["error.type"] == "NOT_FOUND"


class Exporting:
    """An agent with a collector, and clients of the Open Inference Protocol."""

    def __init__(self, server, seen):
        self.server = server
        self.seen = seen

    def client(self):
        return closing(triton.InferenceServerClient(self.server.address))

    def infer(self, headers=None, model="Mean", array=None, **options):
        with self.client() as client:
            inputs = [tensor_of(images(1) if array is None else array)]
            return client.infer(model, inputs, headers=headers, **options)

    def stop(self):
        """Stops the agent, so that all its spans are there, and returns them."""
        self.server.stop()
        return self.seen.spans


@contextmanager
def exporting(start, scheme="", level=TraceLevel.MODEL_TRACE):
    seen = Seen()
    with COLLECTORS[scheme](seen) as port:
        resource = agent_resource()
        export = TraceExport.open(TraceAddress.parse(f"{scheme}{HOST}:{port}"), resource)
        yield Exporting(start(ServerTracing(export, level, resource)), seen)


@pytest.fixture
def start(start_agent):
    return lambda tracing, **options: start_agent(parts={"tracing": tracing}, **options)


@KINDS
def test_a_request_with_a_traceparent_leaves_its_way_through_the_agent(start, scheme):
    with exporting(start, scheme) as agent:
        agent.infer(traceparent(TRACE_IDS[0]))
        agent.infer()
        agent.seen.wait_for(lambda: len(agent.seen.spans) == 4)
        spans = agent.stop()

    assert {span.trace_id for span in spans.values()} == {TRACE_IDS[0]}
    assert {span.resource["service.name"] for span in spans.values()} == {"inferometer-agent"}
    by_name = {span.name: (id_, span) for id_, span in spans.items()}
    assert set(by_name) == {INFER, "queue", "batch", "predict"}
    (request_id, request), (_, queue), (batch_id, batch), (_, predict) = map(
        by_name.get, (INFER, "queue", "batch", "predict")
    )
    assert (request.role, request.parent_id % 2**64) == ("server", CALLER_ID)
    assert queue.parent_id == batch.parent_id == request_id
    assert predict.parent_id == batch_id
    if scheme != "zipkin://":  # which has no links
        assert batch.links == ((TRACE_IDS[0], request_id),)
    assert batch.attributes["inferometer.batch_requests"] == 1
    assert request.start_ns <= queue.start_ns <= batch.start_ns <= predict.start_ns
    assert predict.start_ns + predict.duration_ns <= request.start_ns + request.duration_ns
    assert not request.failed


HTTP_INFER = "POST /v2/models/{model}/infer"


def test_a_request_over_http_has_the_names_of_its_conventions(start):
    statuses = []
    with exporting(partial(start, http_port=0)) as agent:
        url = agent.server.http_url
        image = triton_http.InferInput("data", [1, 1, 4, 4], "FP32")
        image.set_data_from_numpy(images(1))
        with closing(triton_http.InferenceServerClient(url.removeprefix("http://"))) as client:
            client.infer("Mean", [image], headers=traceparent(TRACE_IDS[0]))
            client.infer("Mean", [image])
        with closing(Rest(url)) as ask:
            for model in ("Nobody", "Failing"):
                inputs = {"inputs": [json_input(images(1))]}
                statuses.append(ask.infer(inputs, model=model, headers=traceparent(TRACE_IDS[1])).status)
        spans = agent.stop()

    assert statuses == [404, 500]
    requests = [span for span in spans.values() if span.name == HTTP_INFER]
    assert all((s.role, s.parent_id % 2**64) == ("server", CALLER_ID) for s in requests)
    by_status = {span.attributes["http.response.status_code"]: span for span in requests}
    assert {status: span.failed for status, span in by_status.items()} == {200: False, 404: False, 500: True}
    assert by_status[500].attributes["error.type"] == "500"
    [answered] = [span for span in requests if span.trace_id == TRACE_IDS[0]]
    assert answered.attributes.pop("client.port") > 0
    assert answered.attributes == {
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "http.route": "/v2/models/{model}/infer",
        "url.path": "/v2/models/Mean/infer",
        "url.scheme": "http",
        "client.address": HOST,
        "server.address": HOST,
        "server.port": int(url.rpartition(":")[2]),
        "inferometer.trace_level": "APPLICATION_TRACE",
    }
    paths = {"/".join(above(spans, s)) for s in spans.values() if s.trace_id == TRACE_IDS[0]}
    assert paths == {HTTP_INFER, *(f"{HTTP_INFER}/{name}" for name in ("queue", "batch", "batch/predict"))}


def test_requests_of_one_batch_are_linked_to_each_other(start):
    batching = BatchingOptions(max_batch_size=2, max_queue_delay_ms=60_000)
    with exporting(partial(start, serving=ServingOptions(batching=batching))) as agent:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda trace_id: agent.infer(traceparent(trace_id)), TRACE_IDS))
        spans = agent.stop()

    assert len(spans) == 8
    requests = {(span.trace_id, id_) for id_, span in spans.items() if span.name == INFER}
    made = [span for span in spans.values() if span.name == "batch"]
    assert [set(span.links) for span in made] == [requests, requests]
    assert {span.attributes["inferometer.batch_size"] for span in made} == {2}
    assert len({(span.start_ns, span.duration_ns) for span in made}) == 1
    for span in spans.values():
        if span.name != INFER:
            assert spans[span.parent_id].trace_id == span.trace_id


def test_the_span_of_a_batch_names_its_instance(start, manifest_folder):
    serving = ServingOptions(BatchingOptions(instances=2))
    with exporting(partial(start, serving=serving)) as agent, ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(agent.infer, traceparent(TRACE_IDS[0]), "Waiting") for _ in range(3)]
        wait_for(lambda: any(model.waiting == 1 for model in agent.server.models.loaded))
        (manifest_folder / "go").touch()
        for call in calls:
            call.result()
        spans = agent.stop()

    batches = [span.attributes["inferometer.instance"] for span in spans.values() if span.name == "batch"]
    assert (len(batches), set(batches)) == (3, {0, 1})


@pytest.mark.parametrize(
    "headers", [None, traceparent(TRACE_IDS[0], "00"), {"traceparent": "nonsense"}], ids=str
)
def test_what_is_not_sampled_leaves_nothing(start, headers):
    with exporting(start) as agent:
        agent.infer(headers)
        assert agent.stop() == {}


def test_a_request_that_fails_is_an_error_where_the_agent_is_the_cause(start):
    with exporting(start) as agent:
        for model, array in (("Failing", None), ("Nobody", None), ("Mean", images(1, side=5))):
            with pytest.raises(InferenceServerException):
                agent.infer(traceparent(TRACE_IDS[0]), model, array)
        spans = agent.stop().values()

    calls = [span for span in spans if span.name == INFER]
    assert sorted((span.attributes["rpc.grpc.status_code"], span.failed) for span in calls) == [
        (3, False),
        (5, False),
        (13, True),
    ]
    assert [span.name for span in spans if span.parent_id not in agent.seen.spans] == [INFER] * 3


def test_the_requests_of_a_stream_are_below_it(start):
    answers = []
    with exporting(start) as agent, agent.client() as client:
        client.start_stream(lambda **given: answers.append(given), headers=traceparent(TRACE_IDS[0]))
        for _ in range(3):
            client.async_stream_infer("Mean", [tensor_of(images(1))])
        client.stop_stream()
        spans = agent.stop()

    assert [given["error"] for given in answers] == [None] * 3
    paths = Counter("/".join(above(spans, span)) for span in spans.values())
    stream = "inference.GRPCInferenceService/ModelStreamInfer"
    assert paths == {
        stream: 1,
        f"{stream}/request": 3,
        f"{stream}/request/queue": 3,
        f"{stream}/request/batch": 3,
        f"{stream}/request/batch/predict": 3,
    }


@pytest.mark.parametrize("framework", ["PyTorch", "ONNXRuntime"])
def test_layers_of_a_request_are_below_its_prediction(framework):
    def start(tracing):
        options = ServerOptions(port=0)
        registry = Registry.discover()
        server = AgentServer(Catalog(), registry, options, tracing=tracing)
        stack.callback(server.stop, 0)
        server.start()
        return server

    with ExitStack() as stack, exporting(start, level=TraceLevel.FRAMEWORK_TRACE) as agent:
        inputs = [tensor_of(images(2, side=16), name=input_of(agent, framework))]
        with agent.client() as client:
            client.infer(f"DigitsCNN@{framework}", inputs, headers=traceparent(TRACE_IDS[0]))
        spans = agent.stop()

    layers = [s for s in spans.values() if s.attributes["inferometer.trace_level"] == "FRAMEWORK_TRACE"]
    assert len(layers) > 5
    assert {"/".join(above(spans, span)[:-1]) for span in layers} == {f"{INFER}/batch/predict"}


def input_of(agent, framework):
    with agent.client() as client:
        return client.get_model_metadata(f"DigitsCNN@{framework}").inputs[0].name
