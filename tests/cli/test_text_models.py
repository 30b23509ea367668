"""A BERT-shaped model of three inputs over datasets of texts, and the shipped classifier of texts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.session import Session, SessionOptions, open_session
from inferometer.agent.preprocessing.inputs import Input, Text
from inferometer.agent.server.server import AgentServer, ServerOptions
from inferometer.agent.tasks.predictions import Classifications, Texts, Values
from inferometer.client.remote.native.agent import open_remote_agent
from inferometer.evaluators.datasets.opening import open_dataset, open_path
from inferometer.evaluators.evaluation import SystemUnderTest
from inferometer.evaluators.kinds.batches.measurement import BatchMeasurement
from inferometer.evaluators.kinds.batches.request import BatchOptions
from inferometer.evaluators.kinds.batches.run import DatasetRun
from inferometer.evaluators.tasks.classification import normalized
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.loader import load_manifest
from inferometer.manifests.schema import ModelManifest
from tests.bert_shaped import INPUTS, VOCABULARY, BertShaped, save_onnx, save_script
from tests.cli.conftest import Agent

FRAMEWORKS = ("ONNXRuntime", "PyTorch")
TEXTS = ("Ada met Charles in 1833.", "who?", "the numbers", "Charles loved numbers and Ada", "when", "in in")
STARTED = {0, 8}
"""The exit codes of a load that was measured: 8 is one that a busy machine sent late."""
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
        "--fail_on_error=false", "--threads=1", "--num_file_parts=-1",
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


@pytest.fixture(scope="module")
def address(models: Path) -> Iterator[str]:
    server = AgentServer(Catalog([models]), Registry(), ServerOptions(port=0))
    try:
        server.start()
        yield server.address
    finally:
        server.stop(0)


def test_texts_are_evaluated_loaded_and_searched_over_the_open_inference_protocol(
    agent: Agent, models: Path, address: str
) -> None:
    what = (
        "--model_name=Bert_text_classification", "--framework_name=ONNXRuntime", f"--manifests={models}",
        f"--dataset_path={models / 'texts.jsonl'}", f"--agent=kserve://{address}",
    )  # fmt: skip
    evaluated = agent(
        "predict", "dataset", *what, "--batch_size=2", "--num_file_parts=-1", "--min_batches=1",
        "--fail_on_error=false",
    )  # fmt: skip
    assert evaluated.figure("accuracy").startswith("0.8333")
    loaded = agent("predict", "workload", *what, "--initial_qps=40", "--duration=0.5")
    assert loaded.code in STARTED, loaded.stderr
    assert loaded.figure("batches").startswith("queries by the size of their batch")
    searched = agent(
        "predict", "max-qps", *what, "--time_budget=2", "--latency_bound=200", "--min_duration=0.1",
        "--min_queries=10", "--initial_qps=50", "--force",
    )  # fmt: skip
    assert searched.code in STARTED, searched.stderr
    assert "queries/s" in searched.stdout


def test_an_agent_tokenizes_under_load_where_only_it_has_the_tokenizer(
    agent: Agent, models: Path, address: str
) -> None:
    what = (
        "predict", "workload", "--model_name=Bert_text_classification", "--framework_name=ONNXRuntime",
        f"--dataset_path={models / 'texts.jsonl'}", f"--agent={address}", "--initial_qps=40",
        "--duration=0.5",
    )  # fmt: skip
    refused = agent(*what)
    assert refused.code == 2
    assert "its tokenizer is only on the agent; include_preprocess sends the texts" in refused.stderr
    loaded = agent(*what, "--include_preprocess")
    assert loaded.code in STARTED, loaded.stderr
    assert loaded.figure("batches").startswith("queries by the size of their batch")


@pytest.fixture(scope="module")
def questions(models: Path) -> Path:
    """SQuAD's JSON, whose answers are those that the model gives to each question alone; but for two.

    The last question is not answerable, and of the one before, the accepted answer has a word more.
    """
    with opened(manifest_of(models, "PyTorch", "question_answering")) as session:
        alone = [session.predict([Input("", Text("who met Ada?", text))]).outputs for text in TEXTS]
    answers = [each.text(0) for each in alone if isinstance(each, Texts)]
    accepted = [[{"text": answer}] for answer in answers]
    accepted[-2], accepted[-1] = [{"text": f"{answers[-2]} zebra"}], []
    paragraphs = [
        {"context": text, "qas": [{"id": f"q{place}", "question": "who met Ada?", "answers": found}]}
        for place, (text, found) in enumerate(zip(TEXTS, accepted, strict=True))
    ]
    path = models / "questions.json"
    path.write_text(json.dumps({"version": "v2.0", "data": [{"title": "", "paragraphs": paragraphs}]}))
    return path


@pytest.mark.parametrize("place", ["here", "served"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_answers_are_scored(models: Path, questions: Path, address: str, framework: str, place: str) -> None:
    dataset = open_path(questions, "text")
    system: SystemUnderTest = opened(manifest_of(models, framework, "question_answering"))
    if place == "served":
        system.close()
        system = open_remote_agent(address, "Bert_question_answering", framework_name=framework)
    with system:
        options = BatchOptions(batch_size=4, partition_list_size=4)
        measurement = DatasetRun(system, dataset, options, keep_most=None).run().measurement
    assert measurement.failures == ()
    [first, *_, last_but_one, last] = (each.prediction for each in measurement.predictions)
    assert isinstance(first, Texts)
    assert isinstance(last_but_one, Texts)
    assert isinstance(last, Texts)
    assert last.text(0)
    result = measurement.task_result
    assert result is not None
    assert (result.task, result.samples) == ("question_answering", 6)
    assert result.score("exact match") == pytest.approx(4 / 6)
    # of n words, all are in the accepted answer of n + 1
    words = len(normalized(last_but_one.text(0)).split())
    assert result.score("F1") == pytest.approx((4 + 2 * words / (2 * words + 1)) / 6)
    # SQuAD's script takes an answer of punctuation and articles only for none; the last is the wrong one
    without = result.details["without_answer"]
    assert without["exact_match"] * without["samples"] == pytest.approx(without["samples"] - 1)


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
