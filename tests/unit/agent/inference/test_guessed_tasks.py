"""The task that the outputs of a model suggest, and how sure that is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from inferometer.agent.artifacts.files import InputSignature, ModelSignature
from inferometer.agent.inference.given_models import guessed_task, model_of_file
from inferometer.agent.inference.registry import Registry
from inferometer.manifests.loader import manifest_text, parse_manifest
from tests.model_files import save_onnx

Output = tuple[str, str, "tuple[int | None, ...] | None"]
N = None
F = "float32"
P, T = True, False  # an input is an image, or none is
CASES: list[tuple[bool, list[Output], str, str, str, dict[str, Any]]] = [
    (P, [("prob", F, (N, 9))], "Softmax", "certain", "classification",
     {"probabilities_layer": "prob", "probabilities_transform": "none"}),
    (T, [("y", F, (N, 9))], "LogSoftmax", "certain", "classification",
     {"probabilities_layer": "y", "probabilities_transform": "softmax"}),
    (P, [("out", F, (N, 9, 1, 1))], "Conv", "likely", "classification",
     {"probabilities_layer": "out", "probabilities_transform": "softmax"}),
    (T, [("out", F, (N, 9))], "Gemm", "guess", "classification",
     {"probabilities_layer": "out", "probabilities_transform": "softmax"}),
    (T, [("y", "int64", (N,)), ("class", "string", (N, 1))], "", "likely", "classification",
     {"classes_layer": "class"}),
    (P, [("boxes", F, (N, 5, 4)), ("labels", "int64", (N, 5)), ("scores", F, (N, 5))], "",
     "likely", "object_detection",
     {"boxes_layer": "boxes", "probabilities_layer": "scores", "classes_layer": "labels"}),
    (P, [("masks", F, (N, 5, 8, 8)), ("boxes", F, (N, 5, 4)), ("conf", F, (N, 5))], "",
     "likely", "instance_segmentation",
     {"boxes_layer": "boxes", "probabilities_layer": "conf", "masks_layer": "masks"}),
    (P, [("out", F, (N, 21, 64, N))], "Resize", "likely", "semantic_segmentation",
     {"masks_layer": "out"}),
    (P, [("out", F, (N, 3, 64, 64))], "Add", "guess", "image_enhancement", {"image_layer": "out"}),
    (T, [("start_logits", F, (N, N)), ("end_logits", F, (N, N))], "", "likely",
     "question_answering", {"start_layer": "start_logits", "end_layer": "end_logits"}),
    (T, [("sentence_embedding", F, (N, 384))], "", "likely", "embedding",
     {"embedding_layer": "sentence_embedding"}),
    (T, [("x", F, (N, 384))], "LpNormalization", "likely", "embedding", {"embedding_layer": "x"}),
    (T, [("variable", F, (N, 1))], "", "likely", "regression", {"values_layer": "variable"}),
    (T, [("y", F, (N, 1))], "Gemm", "guess", "regression", {"values_layer": "y"}),
    (T, [("hidden", F, (N, 7, 9))], "", "guess", "raw", {}),
    (T, [("y", "int64", (N, 7))], "", "guess", "raw", {}),
    (T, [("y", F, None)], "", "guess", "raw", {}),
    (T, [], "", "guess", "raw", {}),
]  # fmt: skip


@pytest.mark.parametrize(("images", "outputs", "operator", "sure", "kind", "parameters"), CASES)
def test_outputs_suggest_a_task(
    images: bool, outputs: list[Output], operator: str, sure: str, kind: str, parameters: dict[str, Any]
) -> None:
    signatures = tuple(InputSignature(*each) for each in outputs)
    signature = ModelSignature((), outputs=signatures, operators={each[0]: operator for each in outputs})
    found, how_sure, reason = guessed_task(signature, images=images, open_batch=True)
    assert (found, how_sure) == ({"type": kind, "parameters": parameters}, sure)
    assert re.fullmatch(r".*\S", reason)


def test_an_output_for_the_whole_batch_is_named_and_is_no_prediction() -> None:
    outputs = [("loss", "float32", ()), ("mean", "float32", (3,)), ("y", "float32", (N, 9))]
    signature = ModelSignature((), outputs=tuple(InputSignature(*each) for each in outputs))
    found, _, reason = guessed_task(signature, images=True, open_batch=True)
    assert found["parameters"]["probabilities_layer"] == "y"
    assert reason.endswith("; outputs for the whole batch: loss, mean")
    found, _, reason = guessed_task(signature, images=True, open_batch=False)  # of batches of three
    assert reason.endswith("; outputs for the whole batch: loss")


@pytest.mark.parametrize(("inputs", "kind"), [("input_ids", "text_classification"), ("x", "classification")])
def test_tokens_are_those_of_texts(inputs: str, kind: str) -> None:
    outputs = (InputSignature("logits", "float32", (N, 2)),)
    signature = ModelSignature((InputSignature(inputs, "int64", (N, N)),), outputs=outputs)
    assert guessed_task(signature, images=False, open_batch=True)[0]["type"] == kind


def test_a_mere_guess_remains_a_comment(tmp_path: Path) -> None:
    given = model_of_file(save_onnx(tmp_path / "a.onnx", ("n", 1)), Registry())
    text = manifest_text(given.manifest, tmp_path, tmp_path, {"a.onnx": "sha256:" + "0" * 64}, given.task)
    assert "# guess: regression, because out has the shape (batch, 1): one number for each input\n" in text
    assert "  # type: regression\n  # parameters:\n  #   values_layer: out\n" in text
    parsed = parse_manifest(yaml.safe_load(text), tmp_path / "a.yml")
    assert parsed.output.type == "raw"  # type: ignore[attr-defined]


def test_an_exported_program_has_outputs_too(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Softmax(1))
    batch = {0: torch.export.Dim("batch")}
    exported = torch.export.export(model.eval(), (torch.zeros(2, 3),), dynamic_shapes=(({**batch},)))
    torch.export.save(exported, tmp_path / "a.pt2")
    found, sure, reason = model_of_file(tmp_path / "a.pt2", Registry()).task
    parameters = {"probabilities_layer": "output0", "probabilities_transform": "none"}
    assert found == {"type": "classification", "parameters": parameters}
    assert (sure, reason) == ("certain", "output0 is the output of Softmax")
