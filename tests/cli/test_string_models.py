"""A model of strings in ONNX Runtime: here, served by both protocols, and under load."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import inferometer as im
from tests.cli.conftest import PLACES, Agent

STARTED = {0, 8}
"""The exit codes of a load that was measured: 8 is one that a busy machine sent late."""
ROWS = [
    {"text": "good", "pair": "meh", "label": "positive"},
    {"text": "great", "pair": "bad", "label": "positive"},
    {"text": "bad", "pair": "great", "label": "negative"},
    {
        "text": "Größe 😀",
        "pair": "bad",
        "label": "positive",
    },  # an unknown word, which counts as negative alone
    {"text": "", "pair": "bad", "label": "positive"},
]


def save_graph(path: Path, inputs: int) -> None:
    """Scores of the first text, less those of the second where there is one, by a table of words."""
    names = ["texts", "others"][:inputs]
    nodes = [
        helper.make_node(
            "LabelEncoder", [name], [f"known_{name}"], domain="ai.onnx.ml",
            keys_strings=["good", "great", "bad"], values_floats=[0.75, 0.875, 0.125], default_float=0.25,
        )
        for name in names
    ]  # fmt: skip
    difference = "known_texts"
    if inputs == 2:
        nodes.append(helper.make_node("Sub", ["known_texts", "known_others"], ["difference"]))
        nodes.append(helper.make_node("Add", ["difference", "half"], ["shifted"]))
        difference = "shifted"
    nodes.append(helper.make_node("Sub", ["one", difference], ["negative"]))
    nodes.append(helper.make_node("Concat", ["negative", difference], ["scores"], axis=1))
    graph = helper.make_graph(
        nodes,
        "words",
        [helper.make_tensor_value_info(name, TensorProto.STRING, ["n", 1]) for name in names],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", 2])],
        [
            helper.make_tensor(name, TensorProto.FLOAT, [1], [size])
            for name, size in (("one", 1), ("half", 0.5))
        ],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=9), path)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model of a text and one of a pair of texts, and datasets."""
    folder = tmp_path_factory.mktemp("words")
    for name, inputs in (("Words", 1), ("Pairs", 2)):
        save_graph(folder / f"{name}.onnx", inputs)
        string = {"dimensions": [1], "element_type": "string"}
        layers = ["texts", "others"][:inputs]
        manifest = {
            "name": name,
            "framework": {"name": "ONNXRuntime"},
            "inputs": [{"type": "tensor", "parameters": {**string, "input_layer": each}} for each in layers],
            "output": {
                "type": "text_classification",
                "parameters": {"probabilities_layer": "scores", "labels": ["negative", "positive"]},
            },
            "model": {"graph_path": f"{name}.onnx"},
        }
        (folder / f"{name}.yml").write_text(json.dumps(manifest))
    alone = [{name: text for name, text in row.items() if name != "pair"} for row in ROWS]
    (folder / "texts.jsonl").write_text("\n".join(map(json.dumps, alone)))
    (folder / "pairs.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    labels = np.array([row["label"] for row in ROWS[:4]])
    np.savez(folder / "texts.npz", inputs=np.array([[row["text"]] for row in ROWS[:4]]), labels=labels)
    np.savez(folder / "numbers.npz", inputs=np.zeros((2, 1), np.float32), labels=labels[:2])
    return folder


@pytest.mark.parametrize("place", PLACES)
def test_texts_reach_a_model_of_strings_wherever_it_runs(
    agent: Agent, models: Path, addresses: dict[str, tuple[str, ...]], place: str
) -> None:
    for name, data, accuracy, failures in (
        ("Words", "texts.jsonl", "0.7500", "1"),
        ("Words", "texts.npz", "0.7500", "0"),
        ("Pairs", "pairs.jsonl", "1.0000", "1"),
    ):
        answer = agent(
            "predict", "dataset", f"--model_name={name}", f"--manifests={models}", *addresses[place],
            f"--dataset_path={models / data}", "--batch_size=2", "--num_file_parts=-1", "--min_batches=1",
            "--fail_on_error=false",
        )  # fmt: skip
        assert answer.code == int(failures), answer.stderr
        assert answer.figure("accuracy").startswith(accuracy), (name, data)
        assert answer.figure("failures") == failures
        if failures == "1":
            assert "the text is empty" in answer.stdout + answer.stderr


@pytest.mark.parametrize("given", ["--synthetic", "prepared", "--include_preprocess"])
@pytest.mark.parametrize("place", PLACES)
def test_load_sends_strings(
    agent: Agent, models: Path, addresses: dict[str, tuple[str, ...]], place: str, given: str
) -> None:
    data = () if given == "--synthetic" else (f"--dataset_path={models / 'texts.npz'}",)
    answer = agent(
        "predict", "workload", "--model_name=Words", f"--manifests={models}", *addresses[place], *data,
        *([given] if given.startswith("--") else []), "--initial_qps=100", "--duration=0.2",
    )  # fmt: skip
    assert answer.code in STARTED, answer.stderr
    assert "failed" not in answer.figure("queries")


def test_a_trace_and_a_search_of_a_served_model_of_strings(
    agent: Agent, models: Path, addresses: dict[str, tuple[str, ...]]
) -> None:
    what = ("--model_name=Words", f"--manifests={models}", f"--dataset_path={models / 'texts.npz'}")
    traced = agent(
        "predict", "dataset", *what, *addresses["native"], "--trace_level=FULL_TRACE", "--batch_size=4"
    )
    assert "LabelEncoder" in agent("info", "evaluation", "layers", "-f", "csv").stdout, traced.stderr
    searched = agent(
        "predict", "max-qps", *what, *addresses["kserve"], "--time_budget=2", "--latency_bound=200",
        "--min_duration=0.1", "--min_queries=10", "--initial_qps=20", "--force",
    )  # fmt: skip
    assert searched.code in STARTED, searched.stderr


def test_a_model_file_of_strings_needs_no_manifest(agent: Agent, models: Path) -> None:
    answer = agent(
        "predict",
        "dataset",
        f"--model_path={models / 'Words.onnx'}",
        f"--dataset_path={models / 'texts.npz'}",
    )
    assert answer.code == 0, answer.stderr
    assert "input texts, string (batch, 1)" in answer.stderr


def test_strings_in_memory_are_evaluated(models: Path) -> None:
    made = [["good"], ["Größe"]]
    wanted = {"publish": False, "min_batches": 1, "min_duration_s": 0}
    found = [
        im.evaluate(str(models / "Words.onnx"), inputs=array, **wanted).evaluation.dataset
        for array in (np.array(made), np.array(made, object), np.array(made[::-1]))
    ]
    assert found[0] is not None
    assert found[0].checksum == found[1].checksum != found[2].checksum


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("Words", "numbers.npz", "tensor has element type float32; the model takes strings"),
        ("Words", "pairs.jsonl", "the model takes tensors of string of shape [1]; found a pair of texts"),
        ("Pairs", "texts.jsonl", 'found one text; the model takes a pair, "texts", "others"'),
    ],
)
def test_what_is_no_string_fails_with_its_reason(
    agent: Agent, models: Path, name: str, data: str, reason: str
) -> None:
    answer = agent(
        "predict",
        "dataset",
        f"--model_name={name}",
        f"--manifests={models}",
        f"--dataset_path={models / data}",
    )
    assert answer.code != 0
    assert reason in answer.stderr


def test_strings_do_not_lie_in_shared_memory(
    agent: Agent, models: Path, addresses: dict[str, tuple[str, ...]]
) -> None:
    answer = agent(
        "predict", "dataset", "--model_name=Words", f"--manifests={models}", *addresses["kserve"],
        f"--dataset_path={models / 'texts.npz'}", "--shared_memory=on",
    )  # fmt: skip
    assert answer.code == 2
    assert "cannot be used: the model takes strings, whose sizes differ" in answer.stderr
