"""A BERT-shaped model of three inputs over datasets of texts, and the shipped classifier of texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.session import Session, SessionOptions, open_session
from inferometer.agent.preprocessing.inputs import Input, Text
from inferometer.agent.tasks.predictions import Classifications, Texts, Values
from inferometer.evaluators.dataset_run import DatasetRun
from inferometer.evaluators.datasets.opening import open_dataset, open_path
from inferometer.evaluators.measurements.batches import BatchMeasurement, BatchOptions
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.loader import load_manifest
from inferometer.manifests.schema import ModelManifest
from tests.bert_shaped import INPUTS, VOCABULARY, BertShaped, save_onnx, save_script
from tests.cli.conftest import Agent

FRAMEWORKS = ("ONNXRuntime", "PyTorch")
TEXTS = (
    "Ada met Charles in 1833.",
    "who?",
    "the numbers",
    "Charles loved numbers and Ada",
    "when",
    "in in",
)
TASKS: dict[str, dict[str, Any]] = {
    "text_classification": {"probabilities_transform": "softmax", "labels": ["no", "yes"]},
    "question_answering": {"start_layer": 1, "end_layer": 2},
    "embedding": {"embedding_layer": 3},
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model for each framework and task, their tokenizer, and datasets."""
    folder = tmp_path_factory.mktemp("bert")
    network = BertShaped()
    files = {
        "ONNXRuntime": save_onnx(network, folder / "bert.onnx"),
        "PyTorch": save_script(network, folder / "b.pt"),
    }
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    for framework, path in files.items():
        for task, parameters in TASKS.items():
            manifest = {
                "kind": "model",
                "name": f"Bert_{task}",
                "framework": {"name": framework},
                "inputs": [
                    {
                        "type": "text",
                        "parameters": {
                            "tokenizer": "vocab.txt",
                            "max_length": 24,
                            "layers": dict(zip(("ids", "mask", "types"), INPUTS, strict=True)),
                        },
                    }
                ],
                "output": {"type": task, "parameters": parameters},
                "model": {"graph_path": path.name},
            }
            (folder / f"{framework}_{task}.yml").write_text(yaml.safe_dump(manifest))
    labels = [["no", "yes"][number] for number in own_classes(network)]
    labels[0] = "no" if labels[0] == "yes" else "yes"
    rows = [{"text": text, "label": label} for text, label in zip(TEXTS, labels, strict=True)]
    rows.append({"text": " ", "label": "no"})
    (folder / "texts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


def own_classes(network: BertShaped) -> list[int]:
    """What the network says of each text alone, without any padding."""
    found = []
    for text in TEXTS:
        words = text.lower().replace(".", " .").replace("?", " ?").split()
        ids = torch.tensor([[2, *map(VOCABULARY.index, words), 3]])
        with torch.inference_mode():
            found.append(int(network(ids, torch.ones_like(ids), torch.zeros_like(ids))[0].argmax()))
    return found


def opened(manifest: ModelManifest) -> Session:
    return open_session(manifest, SessionOptions(threads=1), Registry())


def manifest_of(models: Path, framework: str, task: str) -> ModelManifest:
    manifest = load_manifest(models / f"{framework}_{task}.yml")
    assert isinstance(manifest, ModelManifest)
    return manifest


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_dataset_of_texts_is_evaluated(agent: Agent, models: Path, framework: str) -> None:
    answer = agent(
        "predict", "dataset", "--model_name=Bert_text_classification", f"--framework_name={framework}",
        f"--manifests={models}", f"--dataset_path={models / 'texts.jsonl'}", "--batch_size=4",
        "--fail_on_error=false", "--threads=1", "--min_duration=0", "--min_batches=0",
    )  # fmt: skip
    assert answer.figure("failures").startswith("1")
    assert "input 7 failed" in answer.stderr or "the text is empty" in answer.stdout + answer.stderr


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_padding_changes_no_prediction(models: Path, framework: str) -> None:
    dataset = open_path(models / "texts.jsonl", "text")
    with opened(manifest_of(models, framework, "text_classification")) as session:
        for size in (1, 4, 7):
            options = BatchOptions(batch_size=size, partition_list_size=7)
            measurement = DatasetRun(session, dataset, options).run().measurement
            assert isinstance(measurement, BatchMeasurement)
            assert measurement.task_result is not None
            assert measurement.task_result.samples == 6
            assert measurement.task_result.score("accuracy") == pytest.approx(5 / 6)  # one label is wrong
            assert [(f.input_id, f.message) for f in measurement.failures] == [("7", "the text is empty")]


def test_both_frameworks_give_the_same_predictions(models: Path) -> None:
    pairs = [Input(str(n), Text("who met Ada?", text)) for n, text in enumerate(TEXTS)]
    found: dict[str, list[Any]] = {}
    for framework in FRAMEWORKS:
        for task in TASKS:
            with opened(manifest_of(models, framework, task)) as session:
                assert "tokenizer" in session.description.checksums
                assert "tokenizers" in session.description.environment.image_libraries
                found.setdefault(task, []).append(session.predict(pairs).outputs)
    first, second = found["text_classification"]
    assert isinstance(first, Classifications)
    np.testing.assert_array_equal(first.indices, second.indices)
    np.testing.assert_allclose(first.probabilities, second.probabilities, atol=1e-5)
    first, second = found["question_answering"]
    assert isinstance(first, Texts)
    for place, text in enumerate(TEXTS):
        assert first.text(place) == second.text(place)
        assert first.text(place) in text
        assert first.text(place)
    first, second = found["embedding"]
    assert isinstance(first, Values)
    assert first.values.shape == (6, 16)
    np.testing.assert_allclose(first.values, second.values, atol=1e-5)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_shipped_classifier_has_the_accuracy_that_it_states(framework: str) -> None:
    catalog = Catalog()
    model = next(
        each for each in catalog.models if (each.name, each.framework.name) == ("StatementsCNN", framework)
    )
    assert model.dataset is not None
    dataset = open_dataset(catalog.find_dataset(model.dataset))
    with opened(model) as session:
        run = DatasetRun(session, dataset, BatchOptions(batch_size=100, partition_list_size=400)).run()
    assert isinstance(run.measurement, BatchMeasurement)
    assert run.measurement.task_result is not None
    accuracy = run.measurement.task_result.score("accuracy")
    assert accuracy == model.attributes["accuracy"] >= 0.9
