"""Messages of the frameworks when memory runs out, and of CUDA when a device is lost."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper

from inferometer.agent.inference.predictor import prediction_failure
from inferometer.manifests.errors import DeviceLostError, InferometerError, OutOfMemoryError, PredictionError

TOO_MUCH = 2**47


def graph_without_memory(*, arena: bool) -> onnxruntime.InferenceSession:
    """A graph whose output has as many elements as its input says."""
    node = helper.make_node("ConstantOfShape", ["shape"], ["output"])
    graph = helper.make_graph(
        [node],
        "large",
        [helper.make_tensor_value_info("shape", TensorProto.INT64, [1])],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, ["n"])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.enable_cpu_mem_arena = arena
    return onnxruntime.InferenceSession(model.SerializeToString(), options)


def failure_of(error: BaseException) -> InferometerError:
    return prediction_failure("why", error)


def test_pytorch_without_memory() -> None:
    with pytest.raises(RuntimeError) as error:
        torch.empty(TOO_MUCH)
    assert type(failure_of(error.value)) is OutOfMemoryError


@pytest.mark.parametrize("arena", [True, False])
def test_onnxruntime_without_memory(arena: bool) -> None:
    session = graph_without_memory(arena=arena)
    with pytest.raises(Exception, match=r"allocat|bad_alloc") as error:
        session.run(None, {"shape": np.array([TOO_MUCH], np.int64)})
    assert type(failure_of(error.value)) is OutOfMemoryError


def test_another_failure_of_a_framework_is_neither() -> None:
    with pytest.raises(RuntimeError) as error:
        torch.ones(2, 3) @ torch.ones(2, 3)
    assert type(failure_of(error.value)) is PredictionError
    assert str(failure_of(error.value)) == "why"


@pytest.mark.parametrize(
    "text",
    [
        "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.11 GiB",
        "cudaMalloc retry failed: out of memory",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "Available memory of 1024 is smaller than requested bytes of 4096",
        "std::bad_alloc",
    ],
)
def test_gpu_without_memory(text: str) -> None:
    assert type(failure_of(RuntimeError(text))) is OutOfMemoryError


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: an illegal memory access was encountered",
        "CUDA error: device-side assert triggered",
        "CUDA error: unspecified launch failure",
        "CUDA failure 700: an illegal memory access was encountered ; GPU=0",
        "CUDA error: uncorrectable ECC error encountered",
        "CUDNN failure: cudaErrorLaunchFailure",
        "Unable to determine the device handle for GPU0000:00:04.0: GPU is lost.",
    ],
)
def test_device_that_is_lost(text: str) -> None:
    failure = failure_of(RuntimeError(text))
    assert type(failure) is DeviceLostError
    assert str(failure).startswith("why; ")


def test_memory_error_needs_no_words() -> None:
    assert type(failure_of(MemoryError())) is OutOfMemoryError
