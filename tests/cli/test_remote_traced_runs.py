"""Traced runs on an agent in a separate process: what the store keeps, and what the agent exports."""

from __future__ import annotations

import json
import signal
from collections import Counter
from typing import Any

import grpc
import pytest

from inferometer.protos.inferometer.v1 import predict_pb2
from inferometer.protos.inferometer.v1.predict_pb2_grpc import PredictServiceStub
from tests.cli.conftest import Agent, served
from tests.integration.trace_collectors import COLLECTORS, HOST, Seen

EVALUATE = ("predict", "dataset", "--batch_size=16", "--num_file_parts=3")
LAYERS = ("info", "evaluation", "layers", "-f", "csv")
_INTERNAL = 1  # OTLP's SpanKind
CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def tree(agent: Agent, evaluation: str) -> Counter[tuple[str, str]]:
    """How often the store has a span of a name below one of another; calls are left out."""
    exported = agent("trace", "export", evaluation, "-f", "otlp-json").stdout
    of_resources: list[dict[str, Any]] = json.loads(exported)["resourceSpans"]
    spans = {span["spanId"]: span for each in of_resources for span in each["scopeSpans"][0]["spans"]}

    def name_above(span: dict[str, Any]) -> str:
        above = spans.get(span.get("parentSpanId", ""), {"name": "", "kind": _INTERNAL})
        return str(above["name"]) if above["kind"] == _INTERNAL else name_above(above)

    every = spans.values()
    return Counter((name_above(span), str(span["name"])) for span in every if span["kind"] == _INTERNAL)


@pytest.mark.parametrize("framework", ["PyTorch", "MXNet", "ONNXRuntime"])
def test_the_layers_of_a_served_model_are_reported_as_those_of_a_local_one(
    agent: Agent, served_agent: str, framework: str
) -> None:
    run = (*EVALUATE, "--trace_level=FRAMEWORK_TRACE", f"--framework_name={framework}")
    local = agent(*run).figure("evaluation")
    remote = agent(*run, f"--agent={served_agent}").figure("evaluation")

    def layers(evaluation: str) -> list[tuple[str, ...]]:
        columns = ("layer_index", "layer_name", "layer_type", "input_shapes", "output_shapes", "occurrences")
        return [tuple(row[name] for name in columns) for row in agent(*LAYERS, "--id", evaluation).rows]

    assert len(layers(remote)) > 5
    assert layers(remote) == layers(local)
    # The client reads the images, so that each is read twice: here from its file, there from the message.
    here, there = tree(agent, local), tree(agent, remote)
    for above in ("warm_up", "measure"):
        assert there.pop((above, "read")) == 2 * here.pop((above, "read"))
    assert there == here


def test_without_a_trace_no_spans_of_an_agent_are_kept(agent: Agent, served_agent: str) -> None:
    answer = agent(*EVALUATE, "--trace_level=NO_TRACE", f"--agent={served_agent}")
    assert answer.code == 0
    assert "trace " not in answer.stdout
    assert agent(*LAYERS, "--id", answer.figure("evaluation")).rows == []


@pytest.mark.parametrize("scheme", ["", "http://"])
def test_serve_exports_the_calls_of_other_clients_and_stops(scheme: str) -> None:
    seen = Seen()
    with (
        COLLECTORS[scheme](seen) as port,
        served(f"--tracer_address={scheme}{HOST}:{port}", "--trace_level=FRAMEWORK_TRACE") as (at, process),
        grpc.insecure_channel(at) as channel,
    ):
        stub, context = PredictServiceStub(channel), (("traceparent", CALLER),)
        opening = predict_pb2.OpenRequest(model_name="DigitsCNN", framework_name="ONNXRuntime")
        batch = {"dtype": "float32", "shape": [2, 1, 16, 16], "content": bytes(4 * 2 * 256)}
        id_ = stub.Open(opening, metadata=context).session_id
        stub.Predict(predict_pb2.PredictRequest(session_id=id_, batch=batch), metadata=context)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0

    names = Counter(span.name for span in seen.spans.values())
    assert names["load"] == names["predict"] == names["conv1_relu"] == 1
    assert {span.trace_id for span in seen.spans.values()} == {CALLER[3:35]}
