"""Generator of the zoo's models for tasks beyond classification, and of their datasets.

    python tools/train_digits_tasks.py                 write into manifests/builtin
    python tools/train_digits_tasks.py --output DIR    write the same tree below DIR
    python tools/train_digits_tasks.py --check         make it all again and compare with the committed files
    python tools/train_digits_tasks.py --only NAME     one model, such as DigitsDetector; may be repeated

Canvases with digits of ``digits_training`` are drawn from a seed while the networks train; the datasets are
canvases with digits of ``digits_validation``. Training is in float64 on one thread, as for DigitsCNN. The
weights are rounded to float32 and written for PyTorch, ONNX Runtime and MXNet, and each framework must give
the same outputs. The manifests are written by hand; only checksums are put into them.
"""

from __future__ import annotations

import os

# Before numpy and the frameworks, which read it when they are imported.
os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import argparse
import hashlib
import json
import math
import re
import sys
import tempfile
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
import onnxruntime
import torch
from digits_canvas import SIDE, Array, Canvas, Canvases, noisy
from numpy.typing import NDArray
from onnx_to_mxnet import Converter, mxnet
from PIL import Image
from torch.nn import functional

from inferometer.agent.architectures.pytorch import digits_tasks

BUILTIN = Path(__file__).resolve().parent.parent / "manifests" / "builtin"
CANVAS, DENOISING = Path("datasets/digits_canvas"), Path("datasets/digits_denoising")
CANVASES = 100
NOISY_CANVASES = 40
NOISE_DEVIATION = 25.0
"""The standard deviation of the noise in the denoiser's inputs, in grey levels."""
TRAINING_NOISE = 0.05
"""The standard deviation of the noise on the training canvases, 0…1, of detector and segmenter."""
TRAINING_SEED, VALIDATION_SEED = 2, 9
MAX_DIFFERENCE = 1e-4
_CELL_CENTRES = (np.arange(16) + 0.5) * 4
_REACH = 2.01
"""The distance from a digit's middle, in pixels, within which a cell's centre always belongs to it."""


class Trained(ABC):
    """A network and how it is trained.

    Attributes:
        name: The model's name, and that of its class.
        stem: The beginning of the names of its files.
        steps: The number of training steps.
        batch_size: The number of canvases, or digits, in one step.
        rate: The initial learning rate, which falls along half a cosine.
        outputs: The names of the outputs in the graphs.
        side: The height and width of an input.
    """

    name: ClassVar[str]
    stem: ClassVar[str]
    steps: ClassVar[int]
    batch_size: ClassVar[int] = 16
    rate: ClassVar[float] = 2e-3
    outputs: ClassVar[tuple[str, ...]]
    side: ClassVar[int] = SIDE

    def __init__(self) -> None:
        torch.manual_seed(TRAINING_SEED)
        self.random = np.random.default_rng(TRAINING_SEED)
        self.canvases = Canvases("training", TRAINING_SEED)
        self.network: Any = getattr(digits_tasks, self.name)().to(torch.float64)

    @abstractmethod
    def loss(self) -> torch.Tensor:
        """Returns the loss of the next batch."""

    def train(self) -> dict[str, Array]:
        """Returns the weights, float32, by their names in PyTorch."""
        optimizer = torch.optim.Adam(self.network.parameters(), lr=self.rate)
        for step in range(self.steps):
            for group in optimizer.param_groups:
                group["lr"] = self.rate * (1 + math.cos(math.pi * step / self.steps)) / 2
            loss = self.loss()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # PyTorch gives it no types
            optimizer.step()
            if step % 100 == 0 or step == self.steps - 1:
                print(f"{self.name}: step {step} of {self.steps}, loss {loss.item():.4f}", flush=True)
        state = self.network.state_dict()
        return {name: value.to(torch.float32).numpy() for name, value in state.items()}

    def drawn(self) -> list[Canvas]:
        """Draws the canvases of a batch."""
        return [self.canvases.draw() for _ in range(self.batch_size)]

    def inputs(self, canvases: Sequence[Canvas], deviation: float = TRAINING_NOISE) -> torch.Tensor:
        """Returns the canvases as inputs, 0…1, with noise."""
        pixels = np.stack([canvas.pixels for canvas in canvases])[:, None] / 255
        return torch.from_numpy(pixels + self.random.normal(0.0, deviation, pixels.shape))


class Detector(Trained):
    """Trained by focal loss (arXiv 1708.02002) for classes, and 1 - IoU for boxes of cells near a centre."""

    name, stem, steps = "DigitsDetector", "digits_detector", 2500
    outputs = ("boxes", "scores")

    def loss(self) -> torch.Tensor:
        """See ``Trained``."""
        canvases = self.drawn()
        boxes, logits = self.network.grid(self.inputs(canvases))
        classes, wanted = (np.stack(each) for each in zip(*map(_cells, canvases), strict=True))
        truth, target = torch.from_numpy(classes), torch.from_numpy(wanted)
        positive = truth.any(dim=1)
        right = torch.where(truth, torch.sigmoid(logits), 1 - torch.sigmoid(logits))
        weight = torch.where(truth, 0.75, 0.25) * (1 - right) ** 2
        entropy = functional.binary_cross_entropy_with_logits(
            logits, truth.to(torch.float64), reduction="none"
        )
        left, top = torch.maximum(boxes[:, :2], target[:, :2]).unbind(1)
        right_side, bottom = torch.minimum(boxes[:, 2:], target[:, 2:]).unbind(1)
        shared = (right_side - left).clamp(min=0) * (bottom - top).clamp(min=0)
        overlap = shared / (_areas(boxes) + _areas(target) - shared)
        loss: torch.Tensor = (entropy * weight).sum() / positive.sum() + (1 - overlap[positive]).mean()
        return loss


def _areas(boxes: torch.Tensor) -> torch.Tensor:
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])


def _cells(canvas: Canvas) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Returns each cell's class, (10, 16, 16), and box, (4, 16, 16): those of the digit around the cell."""
    classes, boxes = np.zeros((10, 16, 16), bool), np.zeros((4, 16, 16))
    boxes[2:] = 1.0
    for box, digit in zip(canvas.boxes, canvas.digits, strict=True):
        middle, size = (box[:2] + box[2:]) / 2, box[2:] - box[:2]
        near = [np.abs(_CELL_CENTRES - middle[axis]) <= max(size[axis] / 4, _REACH) for axis in range(2)]
        here = near[1][:, None] & near[0][None, :]
        classes[digit][here] = True
        boxes[:, here] = box[:, None]
    return classes, boxes


class Segmenter(Trained):
    """Trained by cross-entropy over the pixels, in which the background has a lower weight."""

    name, stem, steps = "DigitsSegmenter", "digits_segmenter", 2000
    batch_size, rate = 8, 3e-3
    outputs = ("scores",)

    def loss(self) -> torch.Tensor:
        """See ``Trained``."""
        canvases = self.drawn()
        truth = torch.from_numpy(np.stack([canvas.mask for canvas in canvases]).astype(np.int64))
        weight = torch.tensor([0.3] + [1.0] * 10, dtype=torch.float64)
        return functional.cross_entropy(self.network(self.inputs(canvases)), truth, weight=weight)


class Denoiser(Trained):
    """Trained by the mean squared error."""

    name, stem, steps = "DigitsDenoiser", "digits_denoiser", 400
    batch_size = 8
    outputs = ("image",)

    def loss(self) -> torch.Tensor:
        """See ``Trained``."""
        canvases = self.drawn()
        clean = self.inputs(canvases, 0.0)
        noise = torch.from_numpy(self.random.normal(0.0, NOISE_DEVIATION / 255, tuple(clean.shape)))
        return functional.mse_loss(self.network((clean + noise).clamp(0, 1)), clean)


class Embedder(Trained):
    """Trained by supervised contrastive loss (arXiv 2004.11362) over a batch of digits; temperature 0.1."""

    name, stem, steps = "DigitsEmbedder", "digits_embedder", 600
    batch_size, rate, side = 128, 3e-3, 16
    outputs = ("embedding",)

    def __init__(self) -> None:
        super().__init__()
        with np.load(BUILTIN / "datasets/digits_training/digits_training.npz") as training:
            self._images, self._labels = training["images"], training["labels"].astype(np.int64)

    def loss(self) -> torch.Tensor:
        """See ``Trained``."""
        chosen = self.random.integers(0, len(self._labels), self.batch_size)
        labels = torch.from_numpy(self._labels[chosen])
        vectors = functional.normalize(self.network(torch.from_numpy(_digits(self._images[chosen]))), dim=1)
        alike = vectors @ vectors.T / 0.1
        itself = torch.eye(len(labels), dtype=torch.bool)
        others = alike.masked_fill(itself, -math.inf)
        logs = (alike - others.logsumexp(dim=1, keepdim=True)).masked_fill(itself, 0.0)
        same = (labels[:, None] == labels[None, :]) & ~itself
        loss: torch.Tensor = -((logs * same).sum(dim=1) / same.sum(dim=1).clamp(min=1)).mean()
        return loss


def _digits(images: Array) -> Array:
    """Returns 8 × 8 digits as inputs of the embedder: float64, (images, 1, 16, 16)."""
    large = [Image.fromarray(image).resize((16, 16), Image.Resampling.BILINEAR) for image in images]
    pixels: Array = (np.stack([np.asarray(image, np.float64) for image in large])[:, None] - 78.0) / 96.0
    return pixels


MODELS: tuple[type[Trained], ...] = (Detector, Segmenter, Denoiser, Embedder)


def main() -> int:
    """Generates or checks the files; returns the exit status."""
    parser = argparse.ArgumentParser(description="Make the zoo's models of digits for other tasks.")
    target = parser.add_mutually_exclusive_group()
    target.add_argument("--output", type=Path, default=BUILTIN, help="folder to write below")
    target.add_argument("--check", action="store_true", help="compare with what is committed; write nothing")
    names = [model.name for model in MODELS]
    parser.add_argument("--only", action="append", choices=names, help="train this model alone")
    arguments = parser.parse_args()
    start = time.monotonic()
    chosen = [model for model in MODELS if model.name in (arguments.only or names)]
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    differences: list[str] = []
    if arguments.check:
        with tempfile.TemporaryDirectory() as folder:
            make(Path(folder), chosen)
            differences = compare(Path(folder), chosen)
        print("\n".join(differences) or "what is committed is what the script makes")
    else:
        make(arguments.output, chosen)
        write_checksums(arguments.output, chosen)
    print(f"took {time.monotonic() - start:.0f} s")
    return 1 if differences else 0


def make(output: Path, models: Sequence[type[Trained]]) -> None:
    """Writes the datasets and the models' files below ``output``.

    Raises:
        SystemExit: The frameworks disagree.
    """
    write_canvases(output / CANVAS)
    write_noisy(output / DENOISING)
    for model in models:
        folder = output / "models" / model.name
        folder.mkdir(parents=True, exist_ok=True)
        trained = model()
        write_model(trained, trained.train(), folder)


def write_canvases(folder: Path) -> None:
    """Writes canvases with annotations in COCO format, and their masks."""
    canvases = Canvases("validation", VALIDATION_SEED)
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for number in range(CANVASES):
        canvas, file = canvases.draw(), f"{number:04}.png"
        Image.fromarray(canvas.pixels).save(folder / "images" / file)
        Image.fromarray(canvas.mask).save(folder / "masks" / file)
        images.append({"id": number, "file_name": file, "width": SIDE, "height": SIDE})
        for (left, top, right, bottom), digit in zip(
            canvas.boxes.tolist(), canvas.digits.tolist(), strict=True
        ):
            box = [left, top, right - left, bottom - top]
            ink = int((canvas.mask[top:bottom, left:right] == digit + 1).sum())
            annotations.append(
                {"id": len(annotations) + 1, "image_id": number, "category_id": digit + 1}
                | {"bbox": box, "area": ink, "iscrowd": 0}
            )
    categories = [{"id": digit + 1, "name": str(digit)} for digit in range(10)]
    content = {"images": images, "annotations": annotations, "categories": categories}
    (folder / "annotations.json").write_text(json.dumps(content) + "\n", encoding="utf-8")
    (folder / "classes.txt").write_text("\n".join(["background", *map(str, range(10))]) + "\n")


def write_noisy(folder: Path) -> None:
    """Writes canvases, and noisy copies of them."""
    canvases, random = Canvases("validation", VALIDATION_SEED + 1), np.random.default_rng(VALIDATION_SEED)
    for name in ("inputs", "targets"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for number in range(NOISY_CANVASES):
        pixels, file = canvases.draw().pixels, f"{number:04}.png"
        Image.fromarray(pixels).save(folder / "targets" / file)
        Image.fromarray(noisy(pixels, random, NOISE_DEVIATION)).save(folder / "inputs" / file)


def write_model(trained: Trained, weights: dict[str, Array], folder: Path) -> None:
    """Writes the weights for each framework.

    Raises:
        SystemExit: The frameworks' outputs differ.
    """
    network, stem = getattr(digits_tasks, trained.name)().eval(), trained.stem
    state = {name: torch.from_numpy(value) for name, value in weights.items()}
    network.load_state_dict(state)
    torch.save(state, folder / f"{stem}.pt")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this is the older exporter; the newer one requires onnxscript
        torch.onnx.export(
            network,
            (torch.zeros(1, 1, trained.side, trained.side),),
            folder / f"{stem}.onnx",
            dynamo=False,
            dynamic_axes={name: {0: "batch"} for name in ("data", *trained.outputs)},
            opset_version=17,
            input_names=["data"],
            output_names=list(trained.outputs),
        )
    Converter(onnx.load(folder / f"{stem}.onnx")).save(
        folder / f"{stem}-symbol.json", folder / f"{stem}-0000.params"
    )
    verify(trained, network, folder)


def verify(trained: Trained, network: torch.nn.Module, folder: Path) -> None:
    """Compares the frameworks' outputs for two random inputs; raises SystemExit if they differ."""
    shape = (2, 1, trained.side, trained.side)
    data = np.random.default_rng(0).random(shape, np.float32)
    with torch.inference_mode():
        found = network(torch.from_numpy(data))
    wanted = [each.numpy() for each in (found if isinstance(found, tuple) else (found,))]
    session = onnxruntime.InferenceSession(
        folder / f"{trained.stem}.onnx", providers=["CPUExecutionProvider"]
    )
    symbol, arguments, states = mxnet.model.load_checkpoint(str(folder / trained.stem), 0)
    executor = symbol.bind(
        mxnet.cpu(), {**arguments, "data": mxnet.nd.array(data)}, aux_states=states, grad_req="null"
    )
    others = {
        "ONNXRuntime": session.run(None, {"data": data}),
        "MXNet": [each.asnumpy() for each in executor.forward()],
    }
    for framework, outputs in others.items():
        for name, ours, theirs in zip(trained.outputs, wanted, outputs, strict=True):
            apart = float(np.abs(ours - theirs).max())
            print(f"{trained.name}: {name} in {framework} within {apart:.1e} of PyTorch's")
            if not apart <= MAX_DIFFERENCE * max(1.0, float(np.abs(ours).max())):
                raise SystemExit(f"{trained.name}: {name} differs in {framework}")


def write_checksums(output: Path, models: Sequence[type[Trained]]) -> None:
    """Puts the checksums of the files into the manifests beside them, where those exist."""
    for model in models:
        folder = output / "models" / model.name
        for path in folder.glob("*.yml"):
            text = path.read_text(encoding="utf-8")
            for kind in ("graph", "weights"):
                if found := re.search(rf"^ *{kind}_path: (\S+)$", text, re.MULTILINE):
                    checksum = hashlib.sha256((folder / found[1]).read_bytes()).hexdigest()
                    text = re.sub(rf"({kind}_checksum:) .*", rf"\1 sha256:{checksum}", text)
            path.write_text(text, encoding="utf-8")


def compare(made: Path, models: Sequence[type[Trained]]) -> list[str]:
    """Returns the differences from the committed files, one line each."""
    differences = []
    for folder in (CANVAS, DENOISING):
        for path in sorted((made / folder).rglob("*.*")):
            place = path.relative_to(made)
            if not (BUILTIN / place).is_file():
                differences.append(f"{place}: is missing")
            elif path.suffix == ".png":
                if not np.array_equal(*(np.asarray(Image.open(root / place)) for root in (made, BUILTIN))):
                    differences.append(f"{place}: has different pixels")
            elif path.read_bytes() != (BUILTIN / place).read_bytes():
                differences.append(f"{place}: differs")
    for model in models:
        place = Path("models") / model.name / f"{model.stem}.pt"
        ours, theirs = (torch.load(root / place, weights_only=True) for root in (made, BUILTIN))
        for name, value in ours.items():
            apart = float((value - theirs[name]).abs().max())
            if not apart <= MAX_DIFFERENCE:
                differences.append(f"{place}: {name} differs by up to {apart:.1e}")
    return differences


if __name__ == "__main__":
    sys.exit(main())
