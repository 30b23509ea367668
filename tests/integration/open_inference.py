"""Clients of the Open Inference Protocol: tritonclient, and calls of raw bytes."""

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

TIMEOUT_S = 60.0
INFER = "/inference.GRPCInferenceService/ModelInfer"


def tensor_of(array, name="data", datatype="FP32", shape=None):
    """An input that carries an array raw, whatever is said of it."""
    tensor = triton.InferInput(name, list(shape or array.shape), datatype)
    tensor._raw_content = array.tobytes()
    return tensor


def typed(array, field="fp32_contents", name="data", datatype="FP32", shape=None):
    """A request whose input is in typed contents."""
    contents = triton.service_pb2.InferTensorContents(**{field: array.reshape(-1).tolist()})
    return triton.service_pb2.ModelInferRequest.InferInputTensor(
        name=name, datatype=datatype, shape=shape or array.shape, contents=contents
    )


def refused(call, *arguments, **options):
    """The status and the message that a call is refused with."""
    with pytest.raises(InferenceServerException) as error:
        call(*arguments, **options)
    message = error.value.message()
    assert "\n" not in message
    assert "Traceback" not in message
    return str(error.value.status()), message


def images(count, side=4, seed=0):
    return np.random.default_rng(seed).random((count, 1, side, side), np.float32)
