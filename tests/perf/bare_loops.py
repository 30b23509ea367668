"""DigitsCNN in each framework without inferometer: the loops that one writes by hand to time a model."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.artifacts.files import Artifacts
from inferometer.agent.preprocessing.inputs import Payload
from inferometer.agent.preprocessing.preprocessor import ImagePreprocessor

Predict: TypeAlias = Callable[[NDArray[Any]], NDArray[Any]]
"""Maps a batch to the logits, both in host memory."""


def pytorch(artifacts: Artifacts, threads: int, batch_sizes: Sequence[int]) -> Predict:
    """Returns the architecture with its weights; PyTorch accepts any batch size."""
    import torch

    from inferometer.agent.architectures.pytorch.feed_forward import DigitsCNN

    torch.set_num_threads(threads)
    module = DigitsCNN().eval()
    module.load_state_dict(torch.load(str(artifacts.weights), weights_only=True))

    def predict(batch: NDArray[Any]) -> NDArray[Any]:
        with torch.inference_mode():
            return np.asarray(module(torch.from_numpy(batch)).numpy())

    return predict


def mxnet(artifacts: Artifacts, threads: int, batch_sizes: Sequence[int]) -> Predict:
    """Returns the symbol, bound once per batch size.

    The threads are MXNet's workers, which the process shares; a session has already set them to ``threads``.
    """
    import mxnet as mx

    symbol = mx.sym.load(str(artifacts.graph))
    weights = {name.partition(":")[2]: array for name, array in mx.nd.load(str(artifacts.weights)).items()}
    executors = {}
    for size in batch_sizes:
        arguments = {**weights, "data": mx.nd.zeros((size, 1, 16, 16))}
        arguments = {
            name: arguments[name] if name in arguments else mx.nd.zeros((size,))  # a label, only for training
            for name in symbol.list_arguments()
        }
        executors[size] = symbol.bind(mx.cpu(), arguments, grad_req="null")

    def predict(batch: NDArray[Any]) -> NDArray[Any]:
        executor = executors[len(batch)]
        executor.arg_dict["data"][:] = batch
        return np.asarray(executor.forward(is_train=False)[0].asnumpy())

    return predict


def onnxruntime(artifacts: Artifacts, threads: int, batch_sizes: Sequence[int]) -> Predict:
    """Returns the graph in a session; ONNX Runtime accepts any batch size."""
    import onnxruntime as ort

    settings = ort.SessionOptions()
    settings.intra_op_num_threads = threads
    session = ort.InferenceSession(str(artifacts.graph), settings, providers=["CPUExecutionProvider"])

    def predict(batch: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(session.run(None, {"data": batch})[0])

    return predict


BARE = {"PyTorch": pytorch, "MXNet": mxnet, "ONNXRuntime": onnxruntime}


def time_batches(predict: Predict, batches: Sequence[NDArray[Any]]) -> int:
    """Returns the nanoseconds that predicting preprocessed batches takes, one after the other."""
    started_ns = time.perf_counter_ns()
    for batch in batches:
        predict(batch)
    return time.perf_counter_ns() - started_ns


def time_images(
    predict: Predict, preprocessor: ImagePreprocessor, batches: Sequence[Sequence[Payload]]
) -> tuple[int, NDArray[np.int64]]:
    """Decodes, preprocesses and predicts in one thread, one batch after the other.

    Returns:
        The nanoseconds of everything together, and of each batch's prediction.
    """
    predict_ns = []
    started_ns = time.perf_counter_ns()
    for batch in batches:
        array = np.stack([preprocessor(image) for image in batch])
        predicting_ns = time.perf_counter_ns()
        logits = predict(array)
        predict_ns.append(time.perf_counter_ns() - predicting_ns)
        logits.argmax(axis=1)
    return time.perf_counter_ns() - started_ns, np.asarray(predict_ns, np.int64)
