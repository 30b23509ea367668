"""Damaged files of models without a manifest: each is read, or refused in one clean line."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from mutations import assert_one_clean_line, damaged_bytes, damaged_document, fuzzed

from inferometer.agent.artifacts.mxnet_symbols import symbol_inputs
from inferometer.agent.artifacts.onnx_files import read_onnx_signature
from inferometer.agent.artifacts.torch_archives import torch_file, traced_inputs
from inferometer.agent.frameworks.pytorch.programs import build_program, read_program_signature
from inferometer.agent.inference.given_models import Wanted, model_of_file
from inferometer.agent.inference.registry import Registry
from inferometer.manifests.errors import ArtifactError, InferometerError
from tests.model_files import TinyNet, save_onnx, save_program, save_script, save_symbol

EXAMPLE = torch.zeros(2, 3, 8, 8)
PARAMETERS = {"conv0_weight": (4, 3, 3, 3), "conv0_bias": (4,), "dense0_weight": (2, 4), "dense0_bias": (2,)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def valid(folder: Path) -> dict[str, Path]:
    return {
        "onnx": save_onnx(folder / "net.onnx"),
        "pt2": save_program(TinyNet(), folder / "net.pt2", EXAMPLE),
        "traced": save_script(TinyNet(), folder / "net.pt", EXAMPLE),
        "symbol": save_symbol(folder),
    }


@fuzzed
@given(st.data())
def test_onnx_models(folder: Path, valid: dict[str, Path], data: st.DataObject) -> None:
    path = folder / "damaged.onnx"
    path.write_bytes(data.draw(damaged_bytes([valid["onnx"].read_bytes()])))
    try:
        found = {each.name: each.shape for each in read_onnx_signature(path).inputs}
    except ArtifactError as error:
        assert_one_clean_line(error)
        return
    try:
        graph = onnx.ModelProto.FromString(path.read_bytes()).graph
    except DecodeError:
        return
    weights = {each.name for each in graph.initializer}
    inputs = {each.name: each.type.tensor_type for each in graph.input if each.name not in weights}
    if all(name.isprintable() for name in inputs) and len(inputs) == len(found):
        assert set(found) == set(inputs)
        for name, kind in inputs.items():
            sizes = tuple(dim.dim_value if 0 < dim.dim_value < 2**31 else None for dim in kind.shape.dim)
            assert (found[name] or ()) == sizes


@fuzzed
@given(st.data())
def test_archives_of_pytorch(folder: Path, valid: dict[str, Path], data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(["pt2", "traced"]))
    path = folder / f"damaged.{kind}"
    path.write_bytes(data.draw(damaged_bytes([valid[kind].read_bytes()])))
    for read in (
        torch_file,
        traced_inputs,
        read_program_signature,
        lambda it: build_program(it, EXAMPLE.device),
    ):
        try:
            read(path)
        except ArtifactError as error:
            assert_one_clean_line(error)


@fuzzed
@given(st.data())
def test_programs(folder: Path, valid: dict[str, Path], data: st.DataObject) -> None:
    names = ("models/model.json", "data/weights/model_weights_config.json")
    place = data.draw(st.sampled_from(names))
    with zipfile.ZipFile(valid["pt2"]) as source, zipfile.ZipFile(folder / "odd.pt2", "w") as archive:
        for member in source.infolist():
            content: Any = source.read(member)
            if member.filename.endswith(place):
                content = json.dumps(data.draw(damaged_document([json.loads(content)]))).encode()
            archive.writestr(member.filename, content)
    try:
        build_program(folder / "odd.pt2", EXAMPLE.device)
    except ArtifactError as error:
        assert_one_clean_line(error)


@fuzzed
@given(st.data())
def test_pickled_inputs_of_traces(folder: Path, valid: dict[str, Path], data: st.DataObject) -> None:
    with zipfile.ZipFile(valid["traced"]) as source, zipfile.ZipFile(folder / "odd.pt", "w") as archive:
        for member in source.infolist():
            content = source.read(member)
            if member.filename.endswith("traced_inputs.pkl"):
                content = data.draw(damaged_bytes([content]))
            archive.writestr(member.filename, content)
    for each in traced_inputs(folder / "odd.pt") or ():
        assert all(isinstance(size, int) for size in each.shape or ())


@fuzzed
@given(st.data())
def test_symbols(folder: Path, valid: dict[str, Path], data: st.DataObject) -> None:
    path = folder / "odd-symbol.json"
    text = valid["symbol"].read_text("utf-8")
    if data.draw(st.booleans()):
        path.write_bytes(data.draw(damaged_bytes([text.encode()])))
    else:
        document = data.draw(damaged_document([json.loads(text)]))
        path.write_text(json.dumps(document), "utf-8", errors="surrogateescape")
    try:
        symbol_inputs(path, PARAMETERS)
    except ArtifactError as error:
        assert_one_clean_line(error)


@fuzzed
@given(st.data())
def test_manifests_that_are_inferred(folder: Path, valid: dict[str, Path], data: st.DataObject) -> None:
    path = folder / "named.onnx"
    path.write_bytes(data.draw(damaged_bytes([valid["onnx"].read_bytes()])))
    images, tensors = data.draw(st.booleans()), data.draw(st.booleans())
    try:
        given_model = model_of_file(path, Registry(), Wanted(images=images, tensors=tensors))
        assert given_model.manifest.name == "named"
    except InferometerError as error:
        assert_one_clean_line(error)
