"""The precision and cuDNN's setting over a real socket, also between versions."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest

from inferometer.agent.hardware.environment import Precision
from inferometer.agent.inference.session import SessionOptions
from inferometer.agent.protocol.conversion import open_response
from inferometer.client.remote.native.agent import open_remote_agent
from inferometer.manifests.errors import AgentError, ConfigurationError
from inferometer.protos.inferometer.v1 import predict_pb2, predict_pb2_grpc
from tests.contract.store_fixtures import make_system


@contextmanager
def earlier_agent():
    """An agent that does not know the options: it passes over them, and its answer has no such fields."""
    closed = []

    class Service(predict_pb2_grpc.PredictServiceServicer):
        def Open(self, request, context):
            response = open_response("id", make_system())
            response.ClearField("precision")
            response.ClearField("cudnn_benchmark")
            return response

        def Close(self, request, context):
            closed.append(request.session_id)
            return predict_pb2.CloseResponse()

    server = grpc.server(ThreadPoolExecutor(2), options=[("grpc.so_reuseport", 0)])
    predict_pb2_grpc.add_PredictServiceServicer_to_server(Service(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}", closed
    finally:
        server.stop(0).wait()


@pytest.fixture(scope="module")
def agent(start_shared_agent):
    return start_shared_agent()


@pytest.mark.parametrize("precision", [None, *Precision])
@pytest.mark.parametrize("benchmark", [None, False, True])
def test_the_options_reach_the_agent_and_its_description_the_client(agent, precision, benchmark):
    options = SessionOptions(precision=precision, cudnn_benchmark=benchmark)
    with open_remote_agent(agent.address, "Mean", options=options) as remote:
        description = remote.description
    assert description.precision is (precision or Precision.FLOAT32)
    assert description.cudnn_benchmark is benchmark


def test_an_unknown_precision_is_refused_by_the_agent(agent):
    request = predict_pb2.OpenRequest(model_name="Mean", precision=predict_pb2.PRECISION_OF_THE_FILE)
    with grpc.insecure_channel(agent.address) as channel, pytest.raises(grpc.RpcError) as caught:
        predict_pb2_grpc.PredictServiceStub(channel).Open(request, timeout=30)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "precision 4 is not known" in caught.value.details()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (SessionOptions(precision=Precision.BFLOAT16), "the precision bfloat16"),
        (SessionOptions(precision=Precision.FLOAT32), "the precision float32"),
        (SessionOptions(cudnn_benchmark=False), "cudnn_benchmark"),
        (
            SessionOptions(precision=Precision.FLOAT16, cudnn_benchmark=True),
            "the precision float16 and cudnn_benchmark",
        ),
    ],
)
def test_an_earlier_agent_that_passes_over_them_is_refused_and_its_session_closed(options, named):
    refused = pytest.raises(AgentError, match=f"earlier version that does not know {named}; update")
    with earlier_agent() as (address, closed), refused as caught:
        open_remote_agent(address, "Mean", options=options)
    assert "\n" not in str(caught.value)
    assert closed == ["id"]


def test_an_earlier_agent_runs_models_in_their_own_precision():
    with earlier_agent() as (address, _), open_remote_agent(address, "Mean") as remote:
        assert remote.description.precision is None  # of a graph in a file
        assert remote.description.cudnn_benchmark is None


def test_a_framework_that_casts_nothing_refuses_over_the_wire(start_agent, monkeypatch):
    from fake_framework import FakePredictor

    monkeypatch.setattr(FakePredictor, "precisions", frozenset({Precision.FLOAT32}))
    with pytest.raises(ConfigurationError, match="Fake cannot cast it to bfloat16; use float32"):
        open_remote_agent(start_agent().address, "Mean", options=SessionOptions(precision=Precision.BFLOAT16))
