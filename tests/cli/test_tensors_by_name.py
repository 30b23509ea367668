"""Models with several inputs on the command line and in the library: from a file to an evaluation."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import inferometer as im
from inferometer.manifests.loader import load_manifest
from inferometer.manifests.schema import ModelManifest
from tests.cli.conftest import Agent
from tests.token_models import NAMES, SAVERS, TokenNet, batch

FORMS = ("PyTorch", "MXNet", "ONNXRuntime")
INPUTS = 10


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {form: SAVERS[form](tmp_path_factory.mktemp(form)) for form in FORMS}


@pytest.fixture
def arrays(tmp_path: Path) -> Path:
    np.savez(tmp_path / "texts.npz", **batch(INPUTS, 7), labels=np.arange(INPUTS))
    return tmp_path / "texts.npz"


@pytest.mark.parametrize("form", FORMS)
def test_a_manifest_is_written_and_evaluated_over_arrays(
    agent: Agent, files: dict[str, Path], arrays: Path, tmp_path: Path, form: str
) -> None:
    path = tmp_path / "tokens.yml"
    made = agent("manifest", "init", files[form], f"--output={path}", "--name=Tokens")
    assert (made.code, made.stdout) == (0, f"written     {path}\n"), made.stderr
    manifest = load_manifest(path)
    assert isinstance(manifest, ModelManifest)
    assert {each.name: each.dimensions for each in manifest.tensors} == dict.fromkeys(NAMES, (None,))

    evaluated = ("--model_name=Tokens", f"--manifests={tmp_path}", "--batch_size=4", "--min_batches=3")
    done = agent("predict", "dataset", *evaluated, f"--dataset_path={arrays}", "--publish=false")
    assert (done.code, done.stderr.count("failed")) == (0, 0), done.stderr
    assert "over 3 full batches" in done.stdout, done.stdout

    done = agent("predict", "dataset", *evaluated, "--synthetic", "--sequence_length=9", "--publish=false")
    assert (done.code, "synthetic inputs, seed 0, dynamic axes of 9" in done.stdout) == (0, True), done.stdout


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"token_type_ids": None}, 'has no array "token_type_ids"; did you mean'),
        ({"extra": np.ones(3)}, 'has the array "extra"; the model takes "input_ids"'),
        ({"input_ids": np.ones((INPUTS, 7))}, "input_ids is float64 of shape (10, 7); the model takes int64"),
        ({"input_ids": np.ones(INPUTS, np.int64)}, "the model takes int64 (samples, -1)"),
        ({"input_ids": np.ones((3, 7), np.int64)}, "the arrays differ in length: 3 of input_ids, 10 of"),
        ({"labels": np.arange(3)}, "labels have shape [3], but there are 10 samples"),
    ],
)
def test_arrays_are_checked_against_the_model_when_they_are_opened(
    agent: Agent, files: dict[str, Path], tmp_path: Path, changed: dict[str, np.ndarray | None], message: str
) -> None:
    arrays = {k: v for k, v in {**batch(INPUTS, 7), **changed}.items() if v is not None}
    np.savez(tmp_path / "texts.npz", **arrays)
    done = agent(
        "predict", "dataset", f"--model_path={files['ONNXRuntime']}", f"--dataset_path={tmp_path}/texts.npz"
    )
    assert done.code != 0
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_module_is_evaluated_over_a_mapping_or_a_tuple_of_arrays(agent: Agent) -> None:
    given = batch(INPUTS, 7)
    run = im.evaluate(TokenNet(), inputs=given, batch_size=4, min_batches=3, publish=False)
    assert (run.latency.batches, run.evaluation.measurement.failures) == (3, ())
    assert run.evaluation.dataset.size == INPUTS
    assert tuple(each.name for each in run.evaluation.system.manifest.tensors) == NAMES
    order = ("input_ids", "token_type_ids", "attention_mask")
    in_order = tuple(given[name] for name in order)
    run = im.evaluate(TokenNet(), inputs=in_order, batch_size=4, min_batches=3, publish=False)
    assert tuple(each.name for each in run.evaluation.system.manifest.tensors) == order


def test_a_numbered_input_needs_its_place(agent: Agent, tmp_path: Path) -> None:
    parameters = {"dimensions": [-1], "element_type": "bool", "input_layer": 2}
    inputs = [{"type": "tensor", "parameters": parameters}] * 2
    content = {
        "name": "Tokens",
        "framework": {"name": "PyTorch"},
        "inputs": inputs,
        "output": {"type": "raw"},
        "model": {"graph_path": "net.pt"},
    }
    (tmp_path / "tokens.yml").write_text(json.dumps(content))
    answer = agent("manifest", "check", tmp_path / "tokens.yml")
    listed = answer.stdout
    assert answer.code == 0, answer.stderr
    assert "field inputs: found input_layer '#2' 2 times" in listed
    assert "field inputs.0.parameters.input_layer: found 2, and the manifest has 2 inputs" in listed
