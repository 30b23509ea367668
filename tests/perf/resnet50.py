"""Overhead with a model of realistic size: ResNet50 with random weights, in batches of 8."""

from __future__ import annotations

import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from inferometer.agent.architectures.sources import BUILTIN_ARCHITECTURES
from inferometer.agent.artifacts.files import Artifacts
from inferometer.agent.hardware.environment import PredictorOptions, Weights
from inferometer.agent.inference.pipeline import Pipeline
from inferometer.agent.inference.predictor import Predictor
from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.session import Session, SessionOptions, no_fetch, open_session, select_model
from inferometer.agent.inference.stages import Postprocessor
from inferometer.agent.preprocessing.inputs import Tensor, Tensors
from inferometer.agent.preprocessing.model_preprocessor import ModelPreprocessor
from inferometer.agent.preprocessing.preprocessor import ImagePreprocessor
from inferometer.evaluators.datasets.base import Dataset, Sample
from inferometer.evaluators.datasets.folder import FolderDataset
from inferometer.evaluators.kinds.batches.request import BatchOptions
from inferometer.evaluators.kinds.batches.run import DatasetRun
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.inputs import ImageParameters
from inferometer.manifests.schema import ModelManifest
from tests.perf.bare_loops import Predict
from tests.perf.dataset_overhead import RepeatedDataset
from tests.perf.ratios import Row, divided, interleaved

BATCH_SIZE = 8
BATCHES = 6
IMAGES = BATCH_SIZE * BATCHES
WIDTH, HEIGHT = 500, 375
WORKERS = 2
PIPELINE_REPEATS = 4
"""Passes of the input pipeline over the images per round; it is much faster than the model."""


def write_images(folder: Path) -> Sequence[Path]:
    """Writes JPEGs of 500 × 375 at quality 90: blurred noise under fine noise, about 60 kB each."""
    random = np.random.default_rng(0)
    paths = []
    for number in range(IMAGES):
        coarse = Image.fromarray(random.integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8))
        smooth = np.asarray(coarse.filter(ImageFilter.GaussianBlur(6)), np.float32)
        fine = (smooth - 128) * 4 + 128 + random.normal(0, 6, smooth.shape)
        path = folder / f"{number:03}.jpg"
        Image.fromarray(np.clip(fine, 0, 255).astype(np.uint8)).save(path, quality=90)
        paths.append(path)
    return paths


def measure(rounds: int) -> list[Row]:
    """Measures ResNet50 in every installed framework, and the input pipeline by itself."""
    catalog, registry = Catalog(), Registry()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_images(folder)
        for entry in registry.entries:
            if entry.installed_version and entry.name in BARE:
                manifest = select_model(
                    catalog, registry, "ResNet50", framework=entry.name, weights=Weights.RANDOM
                )
                with open_session(manifest, SessionOptions(weights=Weights.RANDOM), registry) as session:
                    rows += _model_rows(entry.name, session, FolderDataset(folder, "vision"), rounds)
        any_framework = select_model(catalog, registry, "ResNet50", weights=Weights.RANDOM)
        rows += _pipeline_rows(any_framework, folder, rounds)
    return rows


def _model_rows(framework: str, session: Session, images: FolderDataset, rounds: int) -> list[Row]:
    parameters = session.description.manifest.inputs[0].parameters
    assert isinstance(parameters, ImageParameters)
    preprocessor = ImagePreprocessor(parameters)
    arrays = [preprocessor(sample.read()) for sample in images]
    tensors = RepeatedDataset(
        images.identity, [Sample(str(n), Tensor(array)) for n, array in enumerate(arrays)]
    )
    batches = [np.stack(arrays[n : n + BATCH_SIZE]) for n in range(0, IMAGES, BATCH_SIZE)]
    with ExitStack() as stack:
        bare = BARE[framework](stack)
        taken = interleaved(
            rounds,
            {
                "bare": lambda: _time_batches(bare, batches),
                "tensors": lambda: _evaluate(session, tensors),
                "images": lambda: _evaluate(session, images),
                "decoding": lambda: _decoding_cpu_ns(preprocessor, images),
            },
        )
    cores = session.description.environment.usable_cores
    ideal = [bare + decode / cores for bare, decode in zip(taken["bare"], taken["decoding"], strict=True)]
    return [
        Row(
            f"{framework}: throughput from decoded inputs / bare loop",
            divided(taken["bare"], taken["tensors"]),
            ">= 0.98",
            f"{_per_batch(taken['bare'])} / {_per_batch(taken['tensors'])} ms per batch",
        ),
        Row(
            f"{framework}: (bare predict + decoding CPU time / {cores} cores) / whole time from JPEGs",
            divided(ideal, taken["images"]),
            ">= 0.9",
            f"{_per_batch(ideal)} / {_per_batch(taken['images'])} ms per batch",
        ),
    ]


def _pipeline_rows(manifest: ModelManifest, folder: Path, rounds: int) -> list[Row]:
    parameters = manifest.inputs[0].parameters
    assert isinstance(parameters, ImageParameters)
    with ExitStack() as stack:
        ours = _our_pipeline(manifest, ImagePreprocessor(parameters), FolderDataset(folder, "vision"), stack)
        theirs = _data_loader(sorted(folder.iterdir()), stack)
        taken = interleaved(rounds, {"ours": ours, "theirs": theirs})
    return [
        Row(
            f"input pipeline alone, {WORKERS} threads / DataLoader, {WORKERS} workers: throughput",
            divided(taken["theirs"], taken["ours"]),
            ">= 1.2",
            f"{_per_batch(taken['ours'], PIPELINE_REPEATS)} / "
            f"{_per_batch(taken['theirs'], PIPELINE_REPEATS)} ms per batch",
        )
    ]


class _NullPredictor(Predictor):
    """Takes no time, so that only the input pipeline is measured."""

    def load(self) -> None:
        pass

    def predict(self, inputs: Tensors) -> Tensors:
        return {"output0": np.zeros((len(self.checked_input(inputs)), 1), np.float32)}

    @property
    def threads(self) -> int | None:
        return None

    def close(self) -> None:
        pass


def _our_pipeline(
    manifest: ModelManifest, preprocessor: ImagePreprocessor, images: FolderDataset, stack: ExitStack
) -> Callable[[], int]:
    predictor = _NullPredictor(manifest, Artifacts(), PredictorOptions())
    pipeline = Pipeline(
        predictor,
        ModelPreprocessor([preprocessor]),
        Postprocessor(manifest.output.model_copy(update={"type": "raw"}), 5),  # which ranks nothing
        fetch=no_fetch,
        threads=WORKERS,
    )
    stack.callback(pipeline.close)

    def run() -> int:
        samples = list(images) * PIPELINE_REPEATS
        batches = (samples[n : n + BATCH_SIZE] for n in range(0, len(samples), BATCH_SIZE))
        started_ns = time.perf_counter_ns()
        for result in pipeline.predict_batches(batches):
            assert len(result.input_ids) == BATCH_SIZE
        return time.perf_counter_ns() - started_ns

    return run


class _TorchImages:
    """The images read through ``torch.utils.data``, with torchvision's arithmetic."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = list(paths) * PIPELINE_REPEATS

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> Any:
        import torch

        with Image.open(self._paths[index]) as opened:
            image = opened.convert("RGB")
        short = 256
        width, height = image.size
        size = (short, short * height // width) if width < height else (short * width // height, short)
        image = image.resize(size, Image.Resampling.BILINEAR)
        left, top = round((size[0] - 224) / 2), round((size[1] - 224) / 2)
        pixels = np.array(image.crop((left, top, left + 224, top + 224)))
        tensor = torch.from_numpy(pixels).permute(2, 0, 1).contiguous().to(torch.float32).div(255)
        mean = torch.tensor((0.485, 0.456, 0.406)).view(3, 1, 1)
        deviation = torch.tensor((0.229, 0.224, 0.225)).view(3, 1, 1)
        return tensor.sub_(mean).div_(deviation)


def _data_loader(paths: Sequence[Path], stack: ExitStack) -> Callable[[], int]:
    from torch.utils.data import DataLoader

    loader = DataLoader(
        _TorchImages(paths),  # type: ignore[arg-type]  # it has what a map-style dataset has
        batch_size=BATCH_SIZE,
        num_workers=WORKERS,
        persistent_workers=True,
    )
    stack.callback(lambda: setattr(loader, "_iterator", None))  # ends the workers

    def run() -> int:
        started_ns = time.perf_counter_ns()
        for batch in loader:
            assert len(batch) == BATCH_SIZE
        return time.perf_counter_ns() - started_ns

    return run


def _time_batches(bare: Predict, batches: Sequence[NDArray[Any]]) -> int:
    """Returns the nanoseconds that predicting all batches takes."""
    bare(batches[0])
    started_ns = time.perf_counter_ns()
    for batch in batches:
        bare(batch)
    return time.perf_counter_ns() - started_ns


def _evaluate(session: Session, dataset: Dataset) -> int:
    """Nanoseconds of the measured part of ``predict dataset``, as the evaluation records them."""
    evaluation = DatasetRun(session, dataset, BatchOptions(BATCH_SIZE, BATCH_SIZE)).run()
    assert not evaluation.measurement.failures
    return evaluation.measurement.elapsed_ns


def _decoding_cpu_ns(preprocessor: ImagePreprocessor, images: Dataset) -> int:
    """Returns the processor time, in nanoseconds, of reading and preprocessing in one thread."""
    started_ns = time.thread_time_ns()
    for sample in images:
        preprocessor(sample.read())
    return time.thread_time_ns() - started_ns


def _pytorch(stack: ExitStack, batch_size: int = BATCH_SIZE) -> Predict:
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = BUILTIN_ARCHITECTURES.find("resnet50", "PyTorch").build(initialize=True).eval()

    def predict(batch: NDArray[Any]) -> NDArray[Any]:
        with torch.inference_mode():
            return np.asarray(module(torch.from_numpy(batch)).numpy())

    return predict


def _mxnet(stack: ExitStack, batch_size: int = BATCH_SIZE) -> Predict:
    import mxnet as mx

    net = BUILTIN_ARCHITECTURES.find("resnet50", "MXNet").build(initialize=True)
    net.infer_shape(mx.nd.zeros((batch_size, 3, 224, 224)))
    net.collect_params().setattr("grad_req", "null")
    net.initialize(mx.init.Xavier(), force_reinit=True)
    symbol = net(mx.sym.var("data"))
    weights = {parameter.name: parameter.data() for parameter in net.collect_params().values()}
    arguments = {
        name: weights[name] if name in weights else mx.nd.zeros((batch_size, 3, 224, 224))
        for name in symbol.list_arguments()
    }
    states = {name: weights[name] for name in symbol.list_auxiliary_states()}
    executor = symbol.bind(mx.cpu(), arguments, grad_req="null", aux_states=states)

    def predict(batch: NDArray[Any]) -> NDArray[Any]:
        executor.arg_dict["data"][:] = batch
        return np.asarray(executor.forward(is_train=False)[0].asnumpy())

    return predict


def _onnxruntime(stack: ExitStack, batch_size: int = BATCH_SIZE) -> Predict:
    import onnxruntime as ort
    import torch

    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            BUILTIN_ARCHITECTURES.find("resnet50", "PyTorch").build(initialize=True).eval(),
            (torch.zeros((1, 3, 224, 224)),),
            folder / "resnet50.onnx",
            dynamo=False,
            input_names=["data"],
            output_names=["output0"],
            dynamic_axes={"data": {0: "batch"}, "output0": {0: "batch"}},
        )
    session = ort.InferenceSession(str(folder / "resnet50.onnx"), providers=["CPUExecutionProvider"])

    def predict(batch: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(session.run(None, {"data": batch})[0])

    predict.graph = str(folder / "resnet50.onnx")  # type: ignore[attr-defined] # for a loop under the profiler
    return predict


BARE: Mapping[str, Callable[..., Predict]] = {
    "PyTorch": _pytorch,
    "MXNet": _mxnet,
    "ONNXRuntime": _onnxruntime,
}


def _per_batch(times_ns: Sequence[float], repeats: int = 1) -> str:
    """The median in milliseconds of a batch."""
    return f"{statistics.median(times_ns) / BATCHES / repeats / 1e6:.1f}"
