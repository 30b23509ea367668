"""Generator of DigitsCNN, digits_validation and digits_training: the datasets, the weights, the checksums.

    python tools/train_digits_cnn.py                 write into manifests/builtin
    python tools/train_digits_cnn.py --output DIR    write the same tree below DIR
    python tools/train_digits_cnn.py --check         make it all again and compare with the committed files
    python tools/train_digits_cnn.py --check DIR     or with the tree below DIR

A seeded quarter of scikit-learn's digits becomes digits_validation, the rest digits_training. The network
is trained on the rest, preprocessed like the inputs of an evaluation. Training is in float64 on one thread:
rounding differs from processor to processor, and in float32 that would grow into other weights. The weights
are then rounded to float32 and written for PyTorch, MXNet and ONNX Runtime, and each framework loads its
file and must name the same digit for every image of the dataset.
"""

from __future__ import annotations

import os

# Before numpy and the frameworks, which read it when they are imported.
os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import argparse
import hashlib
import io
import math
import re
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import numpy as np
import torch
from digits_cnn_formats import FORMATS, Array, Weights
from PIL import Image
from sklearn.datasets import load_digits

from inferometer.agent.architectures.pytorch.feed_forward import DigitsCNN
from inferometer.agent.preprocessing.inputs import EncodedImage
from inferometer.agent.preprocessing.preprocessor import ImagePreprocessor
from inferometer.manifests.loader import load_manifest
from inferometer.manifests.schema import ModelManifest

BUILTIN = Path(__file__).resolve().parent.parent / "manifests" / "builtin"
MODEL = Path("models/DigitsCNN")
DATASET = Path("datasets/digits_validation/digits_validation.zip")
TRAINING = Path("datasets/digits_training/digits_training.npz")
FILES = (DATASET, TRAINING, *(MODEL / name for form in FORMATS for name in form.files.values()))

SEED = 20180501
HELD_OUT = 0.25
EPOCHS = 30
BATCH_SIZE = 64
LEARNING_RATE = 0.05
SHIFT_PIXELS = 2  # of the 16x16 input: one pixel of the 8x8 original
MIN_ACCURACY = 0.97
MAX_BYTES = 1_000_000
MAX_DIFFERENCE = 1e-4

Labelled = list[tuple[bytes, int]]
"""PNG files, each with its class."""


def main() -> int:
    """Generates or checks the files; returns the exit status."""
    parser = argparse.ArgumentParser(description="Make the datasets of digits and the DigitsCNN model.")
    target = parser.add_mutually_exclusive_group()
    target.add_argument("--output", type=Path, default=BUILTIN, help="folder to write below")
    target.add_argument(
        "--check", type=Path, nargs="?", const=BUILTIN, metavar="DIR", help="compare; write nothing"
    )
    arguments = parser.parse_args()
    start = time.monotonic()
    differences: list[str] = []
    if arguments.check:
        with tempfile.TemporaryDirectory() as directory:
            make(Path(directory))
            differences = compare(Path(directory), arguments.check)
        print("\n".join(differences) or f"{arguments.check} matches what the script generates")
    else:
        make(arguments.output)
    print(f"took {time.monotonic() - start:.1f} s")
    return 1 if differences else 0


def make(output: Path) -> None:
    """Writes the dataset, the weights and the manifests with their checksums below ``output``.

    Raises:
        SystemExit: The model is not accurate enough, the frameworks disagree, or the files are too large.
    """
    training, held_out = split_digits()
    for folder in (DATASET.parent, TRAINING.parent, MODEL):
        (output / folder).mkdir(parents=True, exist_ok=True)
    write_dataset(held_out, output / DATASET)
    write_arrays(training, output / TRAINING)
    weights = train(*tensors(training))
    for form in FORMATS:
        form.write(weights, output / MODEL)
    accuracy = verify(output / MODEL, *tensors(read_dataset(output / DATASET)))
    sizes_bytes = {path: (output / path).stat().st_size for path in FILES}
    for path, size_bytes in sizes_bytes.items():
        print(f"{path}: {size_bytes:,} bytes")
    if (total := sum(sizes_bytes.values())) > MAX_BYTES:
        raise SystemExit(f"the files have {total:,} bytes; at most {MAX_BYTES:,} may ship")
    write_manifests(output, accuracy)


def split_digits() -> tuple[Labelled, Labelled]:
    """Returns the training images and the held-out images of each class, both in shuffled order."""
    digits = load_digits()
    random = np.random.default_rng(SEED)
    held_out = np.zeros(len(digits.target), dtype=bool)
    for label in range(10):
        members = random.permutation(np.flatnonzero(digits.target == label))
        held_out[members[: round(HELD_OUT * len(members))]] = True
    parts: tuple[Labelled, Labelled] = ([], [])
    for index in random.permutation(len(digits.target)):
        parts[int(held_out[index])].append((encode(digits.images[index]), int(digits.target[index])))
    return parts


def encode(image: Array) -> bytes:
    """Returns an 8x8 image with values 0 to 16 as a grey PNG with values 0 to 255."""
    grey = Image.fromarray(np.rint(image * 255 / 16).astype(np.uint8))
    content = io.BytesIO()
    # Not compressed, because compressed bytes differ between versions of zlib.
    grey.save(content, format="PNG", compress_level=0)
    return content.getvalue()


def write_dataset(samples: Labelled, path: Path) -> None:
    """Writes a zip with one folder per class, byte for byte the same in every run.

    The files are numbered across the classes, so that the first few are of several classes.
    """
    contents = {f"{label}/{index:04}.png": content for index, (content, label) in enumerate(samples)}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(contents):
            entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            entry.create_system = 3  # Unix, wherever this runs
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, contents[name])


def write_arrays(samples: Labelled, path: Path) -> None:
    """Writes an ``.npz`` of pixels, a quarter of the size of PNG files; the same bytes in every run."""
    images = np.stack([np.asarray(Image.open(io.BytesIO(content))) for content, _ in samples])
    np.savez(path, images=images, labels=np.array([label for _, label in samples], np.uint8))


def read_dataset(path: Path) -> Labelled:
    """Returns the samples of the zip in the order of their numbers."""
    with zipfile.ZipFile(path) as archive:
        names = sorted(archive.namelist(), key=lambda name: name.partition("/")[2])
        return [(archive.read(name), int(name.partition("/")[0])) for name in names]


def tensors(samples: Labelled) -> tuple[Array, Array]:
    """Returns the preprocessed images, float32 (samples, 1, 16, 16), and their classes, int64."""
    manifest = load_manifest(BUILTIN / MODEL / FORMATS[0].manifest)
    assert isinstance(manifest, ModelManifest)
    preprocess = ImagePreprocessor(manifest.inputs[0].parameters)
    inputs = np.stack([preprocess(EncodedImage(content)) for content, _ in samples])
    return inputs, np.array([label for _, label in samples])


def train(inputs: Array, labels: Array) -> Weights:
    """Returns the weights, float32, by their names in PyTorch."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(SEED)
    random = np.random.default_rng(SEED)
    model = DigitsCNN().to(torch.float64)
    for layer in model.children():
        layer.reset_parameters()  # type: ignore[operator]  # again in float64: all layers here have it
    targets = torch.from_numpy(labels)
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9, weight_decay=5e-4)
    steps = EPOCHS * math.ceil(len(inputs) / BATCH_SIZE)
    step = 0
    for _ in range(EPOCHS):
        order = random.permutation(len(inputs))
        shifted = torch.from_numpy(shift(inputs, random)).to(torch.float64)
        for start in range(0, len(order), BATCH_SIZE):
            chosen = order[start : start + BATCH_SIZE]
            optimizer.param_groups[0]["lr"] = LEARNING_RATE * (1 + math.cos(math.pi * step / steps)) / 2
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(shifted[chosen]), targets[chosen])
            loss.backward()  # type: ignore[no-untyped-call]  # PyTorch gives it no types
            optimizer.step()
            step += 1
    return {name: value.to(torch.float32).numpy() for name, value in model.state_dict().items()}


def shift(inputs: Array, random: np.random.Generator) -> Array:
    """Returns the images, each shifted by up to ``SHIFT_PIXELS`` along both axes, with the edges repeated."""
    pad = SHIFT_PIXELS
    padded = np.pad(inputs, ((0, 0), (0, 0), (pad, pad), (pad, pad)), mode="edge")
    height, width = inputs.shape[2:]
    moved = np.empty_like(inputs)
    for index, (y, x) in enumerate(random.integers(0, 2 * pad + 1, size=(len(inputs), 2))):
        moved[index] = padded[index, :, y : y + height, x : x + width]
    return moved


def verify(folder: Path, inputs: Array, labels: Array) -> float:
    """Returns the top-1 accuracy of the model in ``folder``, which is the same in every framework.

    Raises:
        SystemExit: The accuracy is below ``MIN_ACCURACY``, or two frameworks name different digits.
    """
    logits = {form.framework: form.predict(folder, inputs) for form in FORMATS}
    first, *others = logits
    for framework, scores in logits.items():
        accuracy = float((scores.argmax(axis=1) == labels).mean())
        print(f"{framework}: top-1 {accuracy:.4f} over {len(labels)} held-out images")
        if accuracy < MIN_ACCURACY:
            raise SystemExit(f"{framework}: top-1 {accuracy:.4f} is below {MIN_ACCURACY}")
    for framework in others:
        print(
            f"{framework}: logits within {np.abs(logits[framework] - logits[first]).max():.1e} of {first}'s"
        )
        differing = np.flatnonzero(logits[framework].argmax(axis=1) != logits[first].argmax(axis=1))
        if len(differing):
            raise SystemExit(f"{framework} and {first} name different digits for images {differing.tolist()}")
    return float((logits[first].argmax(axis=1) == labels).mean())


def write_manifests(output: Path, accuracy: float) -> None:
    """Writes the manifests of the datasets and the models, with the current checksums and accuracy."""
    for path, fields in checksums(output).items():
        if path.parent == MODEL:
            fields["top1_accuracy"] = f"{accuracy:.4f}"
        text = (BUILTIN / path).read_text(encoding="utf-8")
        for field, value in fields.items():
            text, count = re.subn(rf"^( *{field}:) .*$", rf"\1 {value}", text, flags=re.MULTILINE)
            if count != 1:
                raise SystemExit(f"{path}: field {field} occurs {count} times instead of once")
        (output / path).write_text(text, encoding="utf-8")


def checksums(output: Path) -> dict[Path, dict[str, str]]:
    """Returns the checksum fields that each manifest must have for the files in ``output``."""

    def of(path: Path) -> str:
        return "sha256:" + hashlib.sha256((output / path).read_bytes()).hexdigest()

    models = {
        MODEL / form.manifest: {f"{kind}_checksum": of(MODEL / name) for kind, name in form.files.items()}
        for form in FORMATS
    }
    datasets = {path.with_suffix(".yml"): {"checksum": of(path)} for path in (DATASET, TRAINING)}
    return {**datasets, **models}


def compare(made: Path, committed: Path) -> list[str]:
    """Returns what differs, one line each: the dataset's bytes, the graphs, the weights, the checksums."""
    damaged = [f"{path}: is missing" for path in FILES if not (committed / path).is_file()]
    if not damaged:
        for path, fields in checksums(committed).items():
            lines = [line.strip() for line in (committed / path).read_text(encoding="utf-8").splitlines()]
            wanted = (f"{field}: {value}" for field, value in fields.items())
            damaged += [f"{path}: lacks {line}, which its file has" for line in wanted if line not in lines]
    if damaged:
        return damaged
    differences = []
    if (made / DATASET).read_bytes() != (committed / DATASET).read_bytes():
        differences.append(f"{DATASET}: {dataset_difference(made / DATASET, committed / DATASET)}")
    if (made / TRAINING).read_bytes() != (committed / TRAINING).read_bytes():
        differences.append(f"{TRAINING}: is not the one that the script makes")
    for form in FORMATS:
        if form.read_graph(made / MODEL) != form.read_graph(committed / MODEL):
            differences.append(f"{form.framework}: the graph is not the one that the script makes")
        weights = form.read_weights(made / MODEL), form.read_weights(committed / MODEL)
        differences += [f"{form.framework}: {text}" for text in weight_differences(*weights)]
    return differences


def dataset_difference(made: Path, committed: Path) -> str:
    """Returns how two zips with different bytes differ."""
    with zipfile.ZipFile(made) as first, zipfile.ZipFile(committed) as second:
        apart = sorted(set(first.namelist()) ^ set(second.namelist()))
        common = sorted(set(first.namelist()) & set(second.namelist()))
        changed = [name for name in common if first.read(name) != second.read(name)]
    if not (apart or changed):
        return "the files are the same, but not the bytes of the zip around them"
    examples = ", ".join((apart + changed)[:5])
    return f"{len(apart)} files are in one zip only, {len(changed)} have different bytes, such as {examples}"


def weight_differences(made: Weights, committed: Weights) -> list[str]:
    """Returns how two sets of weights differ, one line for each array."""
    shapes = [{name: value.shape for name, value in weights.items()} for weights in (made, committed)]
    if shapes[0] != shapes[1]:
        return [f"the weights are {shapes[1]}; the script makes {shapes[0]}"]
    apart = {name: float(np.abs(made[name] - committed[name]).max()) for name in made}
    return [
        f"{name} differs by up to {difference:.1e}; allowed: {MAX_DIFFERENCE:.0e}"
        for name, difference in apart.items()
        if not difference <= MAX_DIFFERENCE  # true for NaN, too
    ]


if __name__ == "__main__":
    sys.exit(main())
