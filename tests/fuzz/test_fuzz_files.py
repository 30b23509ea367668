"""Damaged files of others: each is read, or refused in one clean line, and nothing else happens."""

from __future__ import annotations

import io
import tarfile
import zipfile
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from google.protobuf.message import DecodeError, Message
from hypothesis import given
from hypothesis import strategies as st
from mutations import assert_one_clean_line, damaged_bytes, damaged_document, fuzzed
from onnx import ModelProto, TensorProto, helper
from PIL import Image

from inferometer.agent.artifacts.downloads import UnpackLimits, unpack
from inferometer.agent.artifacts.onnx_files import check_external_data
from inferometer.agent.preprocessing.inputs import EncodedImage
from inferometer.agent.preprocessing.preprocessor import ImagePreprocessor
from inferometer.evaluators.datasets.opening import open_path
from inferometer.manifests.errors import ArtifactError, DatasetError, InputError, ManifestError
from inferometer.manifests.inputs import ImageParameters
from inferometer.manifests.loader import load_manifest

BUILTIN = Path(__file__).parents[2] / "manifests" / "builtin"
PIXELS = np.random.default_rng(1).integers(0, 256, (9, 11, 3), np.uint8)
MAX_PIXELS = 1_000_000
MAX_BYTES = 1_000_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


def images() -> list[bytes]:
    found = []
    for name in ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM"):
        for mode in ("RGB", "L", "P"):
            if (name, mode) in {("JPEG", "P"), ("PPM", "P")}:
                continue
            file = io.BytesIO()
            Image.fromarray(PIXELS).convert(mode).save(file, name)
            found.append(file.getvalue())
    return found


def arrays(**options: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **options)
    return file.getvalue()


def zips(method: int) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        archive.writestr("cat/1.png", images()[0])
        archive.writestr("dog/", b"")
        archive.writestr("dog/2.png", b"no image")
    return file.getvalue()


def tars() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        archive.add(BUILTIN / "datasets", "sets")
    return file.getvalue()


MANIFESTS = sorted(BUILTIN.glob("**/*.yml"))[::7]
IMAGES = images()
ARRAYS = [
    arrays(images=PIXELS[None], labels=np.array([1])),
    arrays(inputs=np.ones((2, 3), ">f4"), y=np.array(["a", "b"])),
]
ZIPS = [zips(zipfile.ZIP_STORED), zips(zipfile.ZIP_DEFLATED)]
ONNX = [path.read_bytes() for path in sorted(BUILTIN.glob("**/*.onnx"))[:1]]


def with_external_data() -> bytes:
    """A graph of two initializers in another file, one of them in a branch of an ``If``."""

    def outside(name: str) -> TensorProto:
        tensor = TensorProto(name=name, dims=[1], data_type=TensorProto.FLOAT)
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="w.bin")
        return tensor

    branch = helper.make_graph([], "branch", [], [], [outside("inner")])
    node = helper.make_node("If", ["yes"], ["out"], then_branch=branch, else_branch=branch)
    return helper.make_model(helper.make_graph([node], "graph", [], [], [outside("w")])).SerializeToString()


def locations(message: Message) -> set[str]:
    """The files that the tensors within a message of ONNX name, as protobuf itself reads them."""
    if isinstance(message, TensorProto):
        return {entry.value for entry in message.external_data if entry.key == "location"}
    found = set()
    for field, value in message.ListFields():
        if field.message_type is not None:
            for each in [value] if isinstance(value, Message) else value:
                found |= locations(each)
    return found


@fuzzed
@given(damaged_bytes([path.read_bytes() for path in MANIFESTS]))
def test_manifest_text(folder: Path, content: bytes) -> None:
    path = folder / "text.yml"
    path.write_bytes(content)
    try:
        load_manifest(path)
    except ManifestError as error:
        assert_one_clean_line(error)


@fuzzed
@given(damaged_document([yaml.safe_load(path.read_text("utf-8")) for path in MANIFESTS]))
def test_manifest_values(folder: Path, document: Any) -> None:
    path = folder / "values.yml"
    path.write_text(yaml.safe_dump(document), "utf-8", errors="surrogateescape")
    try:
        load_manifest(path)
    except ManifestError as error:
        assert_one_clean_line(error)


@pytest.mark.filterwarnings("ignore")  # of damaged metadata, which the command line prints as one line
@fuzzed
@given(damaged_bytes(IMAGES), st.sampled_from(["pillow", "opencv"]), st.sampled_from(["RGB", "BGR", "GRAY"]))
def test_images(content: bytes, decoder: str, mode: str) -> None:
    channels = 1 if mode == "GRAY" else 3
    parameters = ImageParameters.model_validate(
        {"dimensions": [channels, 5, 5], "color_mode": mode, "decoder": decoder}
    )
    try:
        result = ImagePreprocessor(parameters, max_pixels=MAX_PIXELS)(EncodedImage(content))
        assert result.shape == (channels, 5, 5)
    except InputError as error:
        assert_one_clean_line(error)


@fuzzed
@given(damaged_bytes([*ZIPS, tars()]))
def test_archives(folder: Path, content: bytes) -> None:
    path, into = folder / "archive", folder / "unpacked"
    path.write_bytes(content)
    before = {each for each in folder.iterdir() if each != into}
    try:
        sums = unpack(path, into, UnpackLimits(max_files=50, max_bytes=MAX_BYTES))
        assert all((into / name).is_file() for name in sums)
    except ArtifactError as error:
        assert_one_clean_line(error)
    finally:
        assert {each for each in folder.iterdir() if each != into} == before
        remove(into)


def remove(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        assert not path.is_symlink()
        path.rmdir() if path.is_dir() else path.unlink()
    if folder.exists():
        folder.rmdir()


@fuzzed
@given(damaged_bytes(ZIPS))
def test_datasets_in_a_zip(folder: Path, content: bytes) -> None:
    path = folder / "images.zip"
    path.write_bytes(content)
    read_all(path)


@fuzzed
@given(damaged_bytes(ARRAYS))
def test_datasets_of_arrays(folder: Path, content: bytes) -> None:
    path = folder / "arrays.npz"
    path.write_bytes(content)
    read_all(path)


@fuzzed
@given(damaged_bytes([zipfile.ZipFile(io.BytesIO(ARRAYS[0])).read("images.npy")[:128]]))
def test_headers_of_arrays(folder: Path, header: bytes) -> None:
    path = folder / "header.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("images.npy", header + PIXELS.tobytes())
    read_all(path)


def read_all(path: Path) -> None:
    """Opens a dataset and reads each sample, as a run does."""
    try:
        with closing(open_path(path, "vision")) as dataset:
            for sample in dataset:
                try:
                    sample.read()
                except InputError as error:
                    assert_one_clean_line(error)
    except DatasetError as error:
        assert_one_clean_line(error)


@fuzzed
@given(damaged_bytes([*ONNX, *[with_external_data()] * 4]))
def test_external_data_of_onnx_models(folder: Path, content: bytes) -> None:
    path = folder / "net.onnx"
    path.write_bytes(content)
    try:
        check_external_data(path, None)
    except ArtifactError as error:
        assert_one_clean_line(error)
        return
    with suppress(DecodeError):  # what passes names no file to another reader either
        assert not locations(ModelProto.FromString(content))
