"""The language model in ONNX Runtime: its logits and texts are PyTorch's, and other graphs are refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from threading import Semaphore
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray

from inferometer.agent.frameworks.onnxruntime.language_model import ONNXRuntimeLanguageModel
from inferometer.agent.frameworks.pytorch.language_model import PyTorchLanguageModel
from inferometer.agent.generation.engine import GenerationParameters, Piece
from inferometer.agent.generation.opening import open_engine
from inferometer.agent.hardware.environment import Device, DeviceKind, Precision, PredictorOptions
from inferometer.agent.inference.registry import Registry
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.errors import ArtifactError, ConfigurationError, DeviceError, PredictionError
from tests.unit.agent.generation.test_pytorch_language_model import PROMPTS, RECITED, SHIPPED
from tools.export_llama import MODEL, export

MANIFEST = """
kind: model
name: Exported
framework: {name: ONNXRuntime}
inputs: [{type: tensor, parameters: {dimensions: [-1], element_type: int64, input_layer: input_ids}}]
output: {type: generation}
model: {graph_path: model.onnx}
"""


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    (folder / "model.yml").write_text(MANIFEST)
    return export(SHIPPED, folder)


@pytest.fixture
def copied(exported: Path, tmp_path: Path) -> Path:
    shutil.copytree(exported.parent, tmp_path / "copied")
    return tmp_path / "copied" / MODEL


def opened(graph: Path, **options: Any) -> ONNXRuntimeLanguageModel:
    return ONNXRuntimeLanguageModel(graph, None, PredictorOptions(**options), 3)


def reference() -> PyTorchLanguageModel:
    return PyTorchLanguageModel(SHIPPED / "config.json", SHIPPED / "model.safetensors", PredictorOptions(), 3)


def assert_close(found: NDArray[np.float32], wanted: NDArray[np.float32], share: float = 2e-5) -> None:
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, wanted, rtol=0, atol=share * float(np.abs(wanted).max()))


def test_logits_are_pytorchs_while_sequences_of_several_lengths_join_and_leave(exported: Path) -> None:
    random = np.random.default_rng(3)

    def tokens(count: int) -> list[int]:
        return random.integers(3, 259, size=count).tolist()

    with closing(opened(exported)) as model, closing(reference()) as other:
        assert (model.context_length, model.vocabulary_size) == (2048, 384)
        assert model.end_tokens == other.end_tokens
        for size in (4, 700, 60):  # the second is beyond a chunk
            prompt = tokens(size)
            assert_close(model.prefill(prompt), other.prefill(prompt))
        for leaving in (1, 1, None, 0):
            for _ in range(2):
                step = tokens(len(model._lengths))
                assert_close(model.step(step), other.step(step))
            assert model._cache[0].shape()[2] == max(model._lengths)
            if leaving is None:
                prompt = tokens(30)
                assert_close(model.prefill(prompt), other.prefill(prompt))
            else:
                model.remove(leaving)
                other.remove(leaving)
        model.remove(0)
        assert model._lengths == []


def test_a_graph_in_float16_keeps_its_cache_in_float16(tmp_path: Path) -> None:
    prompt = [5, 200, 77]
    with closing(opened(export(SHIPPED, tmp_path, torch.float16))) as model, closing(reference()) as other:
        assert_close(model.prefill(prompt), other.prefill(prompt), 0.01)
        assert model._cache[0].numpy().dtype == np.float16
        assert_close(model.step([9]), other.step([9]), 0.01)


@pytest.mark.parametrize("size", [1, 3])
def test_its_texts_are_pytorchs(exported: Path, size: int) -> None:
    [manifest] = Catalog([exported.parent]).find_models("Exported")
    shipped = Catalog().find_model("ToyLlama", None, Registry().versions)
    texts = [_texts(each, size) for each in (manifest, shipped)]
    assert texts[0] == texts[1]
    assert texts[0][0].startswith(RECITED[1:])


def _texts(manifest: Any, size: int) -> Sequence[str]:
    """What an engine generates greedily; each text is one token longer than the one before."""
    texts, ended = ["" for _ in PROMPTS], Semaphore(0)

    def receiver(number: int) -> Any:
        def deliver(piece: Piece) -> None:
            texts[number] += piece.text
            if piece.is_last:
                assert piece.error is None
                ended.release()

        return deliver

    engine, description = open_engine(manifest, Registry(), max_batch_size=size)
    assert description.precision == (Precision.FLOAT32 if manifest.name == "ToyLlama" else None)
    with closing(engine):
        for number, prompt in enumerate(PROMPTS):
            chosen = GenerationParameters(temperature=0, max_tokens=60 + number, ignore_eos=True)
            engine.submit(engine.encode(prompt), chosen, receiver(number))
        assert all(ended.acquire(timeout=30) for _ in PROMPTS)
    return texts


def test_what_it_cannot_run_is_refused(exported: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"model\.onnx: is a file and has its own precision; leave out"
    ):
        opened(exported, precision=Precision.BFLOAT16)
    with pytest.raises(DeviceError, match=r"cannot use gpu:7: this build has .*; run on the CPU"):
        opened(exported, device=Device(DeviceKind.GPU, 7))
    with pytest.raises(ArtifactError, match=r"needs graph_path, its \.onnx file"):
        ONNXRuntimeLanguageModel(None, None, PredictorOptions(), 1)
    with closing(opened(exported)) as model, pytest.raises(PredictionError, match="failed on 1 sequences"):
        model.prefill([10**6])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("past_key_values.", "cache.", r"not a decoder with past_key_values\.N\.key, .*: cache\.0\.key"),
        ("present.1.value", "last", r"not a decoder .*: present\.1\.value"),
        ("logits", "scores", "not a decoder .*: logits"),
        ("position_ids", "places", "not a decoder .*: places"),
    ],
)
def test_a_graph_of_another_layout_is_refused(copied: Path, old: str, new: str, message: str) -> None:
    model = onnx.load(copied)
    for value in (*model.graph.input, *model.graph.output):
        value.name = value.name.replace(old, new)
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [name.replace(old, new) for name in names]
    onnx.save(model, copied)
    with pytest.raises(ArtifactError, match=message):
        opened(copied)


@pytest.mark.parametrize(
    "text", [None, "", "[]", "{}", '{"n_positions": []}', '{"n_positions": 9, "eos_token_id": "x"}']
)
def test_a_config_that_is_missing_or_damaged_is_refused(copied: Path, text: str | None) -> None:
    config = copied.parent / "config.json"
    config.unlink()
    if text is not None:
        config.write_text(text)
    with pytest.raises(ArtifactError, match=r"config\.json: cannot be read as the config\.json beside"):
        opened(copied)


@pytest.mark.parametrize(("ends", "found"), [(None, set()), (2, {2}), ([2, 3], {2, 3})])
def test_a_config_may_have_gpt2s_names(copied: Path, ends: object, found: set[int]) -> None:
    (copied.parent / "config.json").write_text(json.dumps({"n_positions": 64, "eos_token_id": ends}))
    with closing(opened(copied)) as model:
        assert (model.context_length, model.end_tokens) == (64, found)


def test_a_graph_that_ignores_the_mask_runs_one_sequence_at_a_time(copied: Path) -> None:
    model = onnx.load(copied)
    for node in model.graph.node:
        node.input[:] = [{"attention_mask": "ones"}.get(name, name) for name in node.input]
    same = onnx.helper.make_node("Equal", ["attention_mask", "attention_mask"], ["same"])
    model.graph.node.insert(0, onnx.helper.make_node("Cast", ["same"], ["ones"], to=onnx.TensorProto.INT64))
    model.graph.node.insert(0, same)
    onnx.save(model, copied)
    with pytest.raises(ArtifactError, match=r"padded at the left, .*; use max_batch_size 1"):
        opened(copied)
    with closing(ONNXRuntimeLanguageModel(copied, None, PredictorOptions(), 1)) as found:
        assert found.prefill([5, 6]).shape == (384,)


def test_a_file_that_is_no_graph_is_refused(copied: Path) -> None:
    copied.write_bytes(b"\x08\x07")
    with pytest.raises(ArtifactError, match=r"model\.onnx"):
        opened(copied)
