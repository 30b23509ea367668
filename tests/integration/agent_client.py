"""A client of every service of an agent that uses only the protocols."""

import grpc
import numpy as np
import pytest
from fake_framework import SIDE
from grpc_health.v1 import health_pb2, health_pb2_grpc

from inferometer.protos.inference.v2 import grpc_service_pb2 as v2
from inferometer.protos.inference.v2.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from inferometer.protos.inferometer.v1 import predict_pb2, registry_pb2, tensor_pb2
from inferometer.protos.inferometer.v1.predict_pb2_grpc import PredictServiceStub
from inferometer.protos.inferometer.v1.registry_pb2_grpc import RegistryServiceStub

TIMEOUT_S = 30
BATCH = np.ones((1, 1, SIDE, SIDE), np.float32)


class Client:
    """The stubs of one channel."""

    def __init__(self, channel):
        self.v2 = GRPCInferenceServiceStub(channel)
        self.v1 = PredictServiceStub(channel)
        self.registry = RegistryServiceStub(channel)
        self.health = health_pb2_grpc.HealthStub(channel)

    def infer(self, model):
        """One request of the Open Inference Protocol."""
        tensor = v2.ModelInferRequest.InferInputTensor(name="data", datatype="FP32", shape=BATCH.shape)
        request = v2.ModelInferRequest(
            model_name=model, inputs=[tensor], raw_input_contents=[BATCH.tobytes()]
        )
        return self.v2.ModelInfer(request, timeout=TIMEOUT_S)

    def open(self, model):
        return self.v1.Open(predict_pb2.OpenRequest(model_name=model), timeout=TIMEOUT_S).session_id

    def checked(self, service=""):
        return self.health.Check(health_pb2.HealthCheckRequest(service=service), timeout=TIMEOUT_S).status

    def watched(self, service=""):
        """The health now and at each change, while the channel is open."""
        request = health_pb2.HealthCheckRequest(service=service)
        return (answer.status for answer in self.health.Watch(request, timeout=TIMEOUT_S))

    def refused(self, model):
        """The code and the message that a request is refused with."""
        with pytest.raises(grpc.RpcError) as error:
            self.infer(model)
        assert "\n" not in error.value.details()
        assert "Traceback" not in error.value.details()
        return error.value.code(), error.value.details()

    def status(self):
        return self.registry.Status(registry_pb2.StatusRequest(), timeout=TIMEOUT_S)


def outcome(client, model):
    """The code that a request is answered with."""
    try:
        client.infer(model)
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def as_stream(requests):
    """The requests of Predict as those of PredictStream."""
    for request in requests:
        yield predict_pb2.PredictStreamRequest.FromString(request.SerializeToString())


def v1_request(session_id):
    tensor = tensor_pb2.Tensor(dtype="float32", shape=BATCH.shape, content=BATCH.tobytes())
    return predict_pb2.PredictRequest(session_id=session_id, batch=tensor)
