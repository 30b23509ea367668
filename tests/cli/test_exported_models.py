"""Models as scikit-learn exports them, an image beside tensors, and outputs for the whole batch."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import skl2onnx
import tritonclient.grpc as triton
from numpy.typing import NDArray
from onnx import TensorProto, helper
from PIL import Image
from sklearn.datasets import load_iris
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import r2_score
from sklearn.svm import LinearSVC

from tests.cli.conftest import PLACES, Agent

X, Y = load_iris(return_X_y=True)
X = X.astype(np.float32)
NAMES = load_iris().target_names[Y]
ONLY_CLASS = "not available: the model names only the best class"
IN_ANOTHER_ORDER = ["virginica", "setosa", "versicolor"]
CLASSIFIERS: dict[str, tuple[Any, NDArray[Any], object, dict[str, Any]]] = {
    "Zip": (LogisticRegression, Y, True, {"probabilities_layer": "output_probability"}),
    "ZipNames": (
        LogisticRegression, NAMES, True,
        {"probabilities_layer": "output_probability", "labels": IN_ANOTHER_ORDER},
    ),
    "NoZip": (LogisticRegression, Y, False, {"probabilities_layer": "probabilities"}),
    "Columns": (
        LogisticRegression, NAMES, "columns", {"classes_layer": "output_label", "labels": IN_ANOTHER_ORDER}
    ),
    "Fives": (LinearSVC, 10 * Y + 5, None, {"classes_layer": "label", "labels": ["5", "15", "25"]}),
    "Two": (LinearSVC, np.where(Y == 1, 1, -1), None, {"classes_layer": 0, "labels": ["-1", "1"]}),
}  # fmt: skip
IMAGE = {"dimensions": [3, 8, 8], "scale": 255, "input_layer": "photo"}
AGES = {"dimensions": [2], "element_type": "int8", "input_layer": "ages"}


def write_table(path: Path, labels: NDArray[Any], column: str = "label") -> None:
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["sepal", "width", "petal", column, "other"])
        rows.writerows([*map(str, row[:3]), label, row[3]] for row, label in zip(X, labels, strict=True))


def write_manifest(
    folder: Path, name: str, inputs: Mapping[str, Any], output: Mapping[str, Any], graph: str = ""
) -> None:
    kinds = {key: "image" if key == "photo" else "tensor" for key in inputs}
    given = [{"type": kinds[key], "parameters": value} for key, value in inputs.items()]
    content = {"name": name, "framework": {"name": "ONNXRuntime"}, "inputs": given, "output": output}
    (folder / f"{name}.yml").write_text(
        json.dumps(content | {"model": {"graph_path": f"{graph or name}.onnx"}})
    )


def write_mixed(path: Path) -> None:
    """Scores are the ages times the mean of the photo; the loss and the constant have no batch axis."""
    floats = {"scores": ["n", 2], "loss": [], "constant": [3]}
    nodes = [
        helper.make_node("ReduceMean", ["photo"], ["mean"], axes=[1, 2, 3], keepdims=0),
        helper.make_node("Unsqueeze", ["mean", "one"], ["column"]),
        helper.make_node("Cast", ["ages"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["floats", "column"], ["scores"]),
        helper.make_node("ReduceMean", ["scores"], ["loss"], keepdims=0),
        helper.make_node("Identity", ["numbers"], ["constant"]),
    ]
    graph = helper.make_graph(
        nodes,
        "mixed",
        [
            helper.make_tensor_value_info("photo", TensorProto.FLOAT, ["n", 3, 8, 8]),
            helper.make_tensor_value_info("ages", TensorProto.INT8, ["n", 2]),
        ],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in floats.items()],
        [
            helper.make_tensor("one", TensorProto.INT64, [1], [1]),
            helper.make_tensor("numbers", TensorProto.FLOAT, [3], [1, 2, 3]),
        ],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with each of the models, its manifest and its table."""
    folder = tmp_path_factory.mktemp("exported")
    for name, (kind, labels, zipmap, parameters) in CLASSIFIERS.items():
        fitted = kind(random_state=0).fit(X, labels)
        options = {} if zipmap is None else {"options": {id(fitted): {"zipmap": zipmap}}}
        exported = skl2onnx.to_onnx(fitted, X[:1], **options)
        (folder / f"{name}.onnx").write_bytes(exported.SerializeToString())
        write_table(folder / f"{name}.csv", labels)
        (folder / f"{name}.score").write_text(str(round(fitted.score(X, labels) * len(X))))
        output = {"type": "classification", "parameters": parameters}
        write_manifest(folder, name, {"X": {"dimensions": [4], "input_layer": "X"}}, output)
    regression = LinearRegression().fit(X, Y)
    (folder / "Line.onnx").write_bytes(skl2onnx.to_onnx(regression, X[:1]).SerializeToString())
    write_table(folder / "Line.csv", Y, "target")
    write_manifest(folder, "Line", {"X": {"dimensions": [4], "input_layer": "X"}}, {"type": "regression"})
    write_mixed(folder / "Mixed.onnx")
    both, scores = {"photo": IMAGE, "ages": AGES}, {"probabilities_layer": "scores"}
    write_manifest(folder, "Mixed", both, {"type": "classification", "parameters": scores})
    write_manifest(folder, "Raw", both, {"type": "raw"}, "Mixed")
    rows = ["photo,first,second,label"]
    for number in range(1, 7):
        Image.new("RGB", (12, 16), (40 * number,) * 3).save(folder / f"{number}.png")
        rows.append(f"{number}.png,{number - 3},{3 - number},{int(number < 3)}")
    (folder / "Mixed.csv").write_text("\n".join(rows))
    return folder


def evaluated(agent: Agent, models: Path, name: str, *options: str, table: str = "") -> Any:
    return agent(
        "predict", "dataset", f"--model_name={name}", f"--manifests={models}", *options,
        f"--dataset_path={models / (table or f'{name}.csv')}", "--batch_size=32", "--num_file_parts=-1",
        "--min_batches=1",
    )  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_classifiers_have_the_accuracy_that_scikit_learn_has(
    agent: Agent, models: Path, addresses: dict[str, tuple[str, ...]], place: str
) -> None:
    for name, (_, _, _, parameters) in CLASSIFIERS.items():
        answer = evaluated(agent, models, name, *addresses[place])
        assert (answer.code, answer.figure("failures")) == (0, "0"), (name, answer.stderr)
        right = (models / f"{name}.score").read_text()
        assert f"({right} of 150 inputs)" in answer.figure("top-1"), name
        only_class = "classes_layer" in parameters
        assert (answer.figure("top-5") == ONLY_CLASS) == only_class, name
        row = agent("info", "evaluation", "accuracy", "-f", "csv").rows[0]
        assert (row["top5_accuracy"] == "", row["calibration_error"] == "") == (only_class, only_class)


@pytest.mark.parametrize("place", PLACES)
def test_an_image_beside_tensors_comes_from_a_table(
    agent: Agent, models: Path, addresses: dict[str, tuple[str, ...]], place: str
) -> None:
    answer = evaluated(agent, models, "Mixed", *addresses[place])
    assert (answer.code, answer.figure("failures")) == (0, "0"), answer.stderr
    assert "(6 of 6 inputs)" in answer.figure("top-1")
    assert evaluated(agent, models, "Raw", *addresses[place], table="Mixed.csv").figure("failures") == "0"


def test_a_regression_is_scored_on_a_table(agent: Agent, models: Path) -> None:
    answer = evaluated(agent, models, "Line")
    predicted = onnxruntime.InferenceSession(models / "Line.onnx").run(None, {"X": X})[0]
    assert answer.figure("R2").startswith(f"{r2_score(Y, predicted):.4f}"), answer.stderr


@pytest.mark.parametrize("name", [*CLASSIFIERS, "Line"])
def test_the_manifest_of_a_file_has_its_task_and_its_classes(
    agent: Agent, models: Path, tmp_path: Path, name: str
) -> None:
    written = agent("manifest", "init", models / f"{name}.onnx", "-o", tmp_path / "mine.yml", "--name=Mine")
    task = "regression" if name == "Line" else "classification"
    assert f"task {task}, certain, because " in written.stderr
    assert f"# certain: {task}, because " in (tmp_path / "mine.yml").read_text()
    answer = agent(
        "predict", "dataset", "--model_name=Mine", f"--manifests={tmp_path}", "--batch_size=32",
        f"--dataset_path={models / f'{name}.csv'}", "--num_file_parts=-1", "--min_batches=1",
    )  # fmt: skip
    if name == "Two":  # whose classes are -1 and 1
        assert "labels:\n    - '-1'\n    - '1'\n" in (tmp_path / "mine.yml").read_text()
    if name == "Line":
        assert answer.figure("R2") == evaluated(agent, models, "Line").figure("R2")
    else:
        assert f"({(models / f'{name}.score').read_text()} of 150 inputs)" in answer.figure("top-1")


def test_a_client_gets_maps_as_scores_and_outputs_of_the_whole_batch_as_such(
    models: Path, addresses: dict[str, tuple[str, ...]]
) -> None:
    client = triton.InferenceServerClient(addresses["native"][0].removeprefix("--agent="))
    with client:
        given = triton.InferInput("X", [2, 4], "FP32").set_data_from_numpy(X[:2])
        found = client.infer("ZipNames", [given])
        scores, labels = found.as_numpy("output_probability"), found.as_numpy("output_label")
        assert scores.shape == (2, 3)
        assert (scores.argmax(axis=1).tolist(), labels.tolist()) == ([1, 1], [b"setosa", b"setosa"])
        ages = triton.InferInput("ages", [2, 2], "INT8").set_data_from_numpy(
            np.array([[1, 2], [3, 4]], np.int8)
        )
        photo = triton.InferInput("photo", [2, 3, 8, 8], "FP32")
        photo.set_data_from_numpy(np.full((2, 3, 8, 8), 0.5, np.float32))
        found = client.infer("Raw", [photo, ages])
        assert found.as_numpy("scores").tolist() == [[0.5, 1], [1.5, 2]]
        assert (found.as_numpy("loss"), found.as_numpy("constant").tolist()) == (1.25, [1, 2, 3])
        outputs = client.get_model_metadata("Raw", as_json=True)["outputs"]
        shapes = {each["name"]: list(map(int, each.get("shape", []))) for each in outputs}
        assert shapes == {"scores": [-1, 2], "loss": [], "constant": [3]}


@pytest.mark.parametrize(
    ("table", "name", "said"),
    [
        ("a,b,c,d\n1,2,3,x\n", "Zip", "line 2: found a = 1, b = 2, c = 3, d = x; the model's input"),
        ("a,b,c\n1,2,3\n", "Zip", "of shape [4]"),
        ("X\n\"[1, 2, [3], 4]\"\n", "Zip", "of shape [4]"),
        ("photo,a\n1.png,1\n", "Mixed", 'is int8 of shape [2]'),
        ("photo,a,b\n1.png,128,0\n", "Mixed", 'found a = 128, b = 0; the model\'s input "ages" is int8'),
        ("photo,a,b\n1.png,1.5,0\n", "Mixed", 'found a = 1.5, b = 0; the model\'s input "ages" is int8'),
        ("photo,a,b\n../1.png,1,0\n", "Mixed", '"../1.png" is not a path in the folder of the table'),
        ("a,b,c\n1,1,1\n", "Mixed", 'for the model\'s inputs "photo", "ages"; it has: a, b, c'),
        ("photo,a,b\nabsent.png,1,0\n", "Mixed", "absent.png"),
        ("a,b\n", "Zip", "has no rows"),
        ("id,a,b,c,d\nx,1,2,3,4\nx,1,2,3,4\n", "Zip", "two rows have the id x; ids must differ"),
        ("a,b,c,d,target\n1,2,3,4,x\n", "Line", "target is not a list of finite numbers"),
    ],
)  # fmt: skip
def test_a_table_that_does_not_fit_is_one_clear_line(
    agent: Agent, models: Path, tmp_path: Path, table: str, name: str, said: str
) -> None:
    (tmp_path / "rows.csv").write_text(table)
    answer = evaluated(agent, models, name, table=str(tmp_path / "rows.csv"))
    assert answer.code != 0
    assert said in answer.stderr + answer.stdout


def test_several_labels_from_maps_have_the_order_of_the_manifest(
    agent: Agent, models: Path, tmp_path: Path
) -> None:
    manifest = json.loads((models / "ZipNames.yml").read_text())
    manifest["output"]["type"] = "multilabel_classification"
    (tmp_path / "ZipNames.yml").write_text(json.dumps(manifest))
    (tmp_path / "ZipNames.onnx").write_bytes((models / "ZipNames.onnx").read_bytes())
    write_table(tmp_path / "rows.csv", NAMES, "labels")
    right = float((models / "ZipNames.score").read_text()) / len(X)
    answer = evaluated(agent, tmp_path, "ZipNames", table=str(tmp_path / "rows.csv"))
    assert float(answer.figure("micro F1")) == pytest.approx(right, abs=0.05), answer.stderr


def test_maps_of_other_classes_than_the_labels_are_refused(
    agent: Agent, models: Path, tmp_path: Path
) -> None:
    for labels, said in (
        (["setosa", "versicolor", "other"], "has the 3 classes setosa, versicolor, virginica; write them as"),
        (["setosa", "versicolor", "virginica", "other"], "has the 3 classes"),
    ):
        manifest = json.loads((models / "ZipNames.yml").read_text())
        manifest["output"]["parameters"]["labels"] = labels
        (tmp_path / "ZipNames.yml").write_text(json.dumps(manifest))
        (tmp_path / "ZipNames.onnx").write_bytes((models / "ZipNames.onnx").read_bytes())
        write_table(tmp_path / "rows.csv", np.full(len(X), "setosa"))
        assert said in evaluated(agent, tmp_path, "ZipNames", table="rows.csv").stderr
