"""``agent score`` as a user runs it: the predictions of another tool, right and wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import brier_score_loss, log_loss

import inferometer
from inferometer.manifests.errors import ConfigurationError
from tests.cli.conftest import Agent, Answer
from tests.scored_files import RIGHT, RUNS, class_folders, coco, results
from tests.task_dataset_files import colour, grey, mask_folder, paired_folder, saved, table

# COCO's 101 points of recall: one of two objects is found, and no prediction is wrong
HALF = 51 / 101


@pytest.fixture
def score(agent: Agent) -> Any:
    def run(task: str, predictions: Path, dataset: Path, *more: str) -> Answer:
        return agent("score", f"--task={task}", str(predictions), f"--dataset_path={dataset}", *more)

    return run


def figures(answer: Answer) -> dict[str, float]:
    """The scores of a csv answer."""
    assert answer.code == 0, answer.stderr
    return {row["score_name"]: float(row["score"]) for row in answer.rows if row["score"]}


def test_an_image_without_results_is_a_miss(score: Any, tmp_path: Path) -> None:
    data, found = coco(tmp_path), results(tmp_path / "found.json", RIGHT)
    answer = score("detection", found, data)
    assert answer.code == 0, answer.stderr
    assert answer.figure("task") == "object_detection"
    assert answer.figure("AP50").startswith(f"{HALF:.4f}")
    assert answer.figure("dataset").endswith("3 samples")
    assert answer.figure("failures") == "0"
    assert "over 3 inputs" in answer.figure("metric")
    [cat] = score("detection", found, data, "-f", "csv", "--average_precision=voc", "--per_class").rows
    assert (cat["class"], cat["average_precision"]) == ("cat", "0.5")


def test_only_the_chosen_images_count(score: Any, tmp_path: Path) -> None:
    data, found = coco(tmp_path), results(tmp_path / "found.json", RIGHT)
    assert figures(score("boundingbox", found, data, "-f", "csv", "--image_ids=1,3"))[
        "AP50"
    ] == pytest.approx(1)


def test_a_row_for_each_score_in_files(score: Any, tmp_path: Path) -> None:
    data, found = coco(tmp_path), results(tmp_path / "found.json", RIGHT)
    answer = score("object-detection", found, data, "-f", "json")
    [first, *_] = json.loads(answer.stdout)
    assert first["task"] == "object_detection"
    assert first["score_name"] == "AP"
    assert first["score"] == pytest.approx(HALF)
    assert first["evaluated_inputs"] == 3
    assert first["definition"].startswith("COCO AP (pycocotools")


def test_masks_of_objects(score: Any, tmp_path: Path) -> None:
    data = coco(tmp_path)
    found = results(tmp_path / "found.json", RIGHT | {"segmentation": RUNS})
    assert figures(score("instance_segmentation", found, data, "-f", "csv"))["AP50"] == pytest.approx(HALF)


def test_a_box_without_area_finds_nothing(score: Any, tmp_path: Path) -> None:
    data = coco(tmp_path)
    found = results(tmp_path / "found.json", RIGHT | {"bbox": [2, 2, 0, 10]})
    assert figures(score("detection", found, data, "-f", "csv"))["AP50"] == 0.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image_id": 8}, 'predicts "8", which dataset'),
        ({"category_id": 8}, "category_id 8 is not one of the dataset's; known: 7, 9"),
        ({"score": float("nan")}, "result 0: score is nan"),
        ({"bbox": [2, 2, -1, 10]}, "bbox is not left, top, width and height"),
        ({"bbox": None}, "has neither bbox nor segmentation"),
    ],
)
def test_wrong_results_are_refused(score: Any, tmp_path: Path, change: Any, message: str) -> None:
    answer = score("detection", results(tmp_path / "found.json", RIGHT | change), coco(tmp_path))
    assert answer.code == 4
    assert message in answer.error


def test_masks_of_another_size_fail(score: Any, tmp_path: Path) -> None:
    wrong = RIGHT | {"segmentation": {"size": [2, 2], "counts": [0, 4]}}
    other = RIGHT | {"segmentation": RUNS, "image_id": 2}
    answer = score("instance_segmentation", results(tmp_path / "f.json", wrong, other), coco(tmp_path))
    assert answer.code == 1
    assert answer.error.startswith("failed inputs: 1; the first: 1: the masks have 2 × 2 pixels")
    assert "failed: 1: the masks have 2 × 2 pixels" in answer.stdout
    assert answer.figure("failures") == "1"
    assert "over 2 inputs" in answer.figure("metric")


def test_boxes_are_no_masks(score: Any, tmp_path: Path) -> None:
    answer = score("instance_segmentation", results(tmp_path / "found.json", RIGHT), coco(tmp_path))
    assert answer.code == 4
    assert "found.json: its results have no segmentation" in answer.error


def test_an_unknown_task_names_the_nearest(score: Any, tmp_path: Path) -> None:
    answer = score("detections", results(tmp_path / "found.json", RIGHT), coco(tmp_path))
    assert answer.code == 2
    assert 'unknown task "detections"; did you mean "detection"' in answer.error


def test_a_dataset_is_required(agent: Agent, tmp_path: Path) -> None:
    answer = agent("score", "--task=detection", str(results(tmp_path / "found.json", RIGHT)))
    assert answer.code == 2
    assert "no dataset is named" in answer.error


def test_masks(score: Any, tmp_path: Path) -> None:
    data = mask_folder(tmp_path / "data")
    for name in ("a", "b"):
        saved(tmp_path / "out" / f"{name}.png", grey())
    saved(tmp_path / "out" / "deep" / "c.png", grey(np.zeros((5, 5), np.uint8)))
    answer = score("semantic_segmentation", tmp_path / "out", data)
    assert answer.code == 1
    assert answer.figure("mean_IoU").startswith("1.0000")
    assert answer.figure("failures") == "1"
    assert "failed: deep/c.jpg: the predicted map has 5 × 5 pixels" in answer.stdout


def test_a_missing_mask_is_named_and_a_strange_one_refused(score: Any, tmp_path: Path) -> None:
    data = mask_folder(tmp_path / "data", "a", "b")
    saved(tmp_path / "out" / "a.png", grey())
    assert "failed: b.jpg: has no prediction" in score("segmentation", tmp_path / "out", data).stdout
    stopped = score("segmentation", tmp_path / "out", data, "--fail_on_error")
    assert stopped.code != 0
    assert "b.jpg: has no prediction; stopped because of fail_on_error" in stopped.error
    saved(tmp_path / "out" / "c.png", grey())
    refused = score("segmentation", tmp_path / "out", data)
    assert refused.code == 4
    assert 'predicts "c", which dataset' in refused.error


def test_images(score: Any, tmp_path: Path) -> None:
    data = paired_folder(tmp_path / "data")
    saved(tmp_path / "out" / "1.png", colour(6, 4, 8))
    found = figures(score("image_enhancement", tmp_path / "out", data, "-f", "csv"))
    # one channel of three is wrong by 1/255
    assert found["PSNR"] == pytest.approx(20 * np.log10(255) + 10 * np.log10(3), abs=1e-3)


def test_numbers(score: Any, tmp_path: Path) -> None:
    data = table(tmp_path / "data")
    lines = (
        tmp_path / "out.jsonl",
        '{"id": "1.png", "values": [1.5, -2]}\n{"id": "2.png", "values": [1e3, 4]}',
    )
    lines[0].write_text(lines[1])
    rows = tmp_path / "out.csv"
    rows.write_text("id,x,y\n1.png,1.5,-2\n2.png,1000,4\n")
    arrays = tmp_path / "out.npz"
    np.savez(arrays, vectors=np.array([[1.5, -2], [1000, 4]]))
    for predictions in (lines[0], rows, arrays):
        assert figures(score("regression", predictions, data, "-f", "csv"))["MAE"] == pytest.approx(0.25)


def test_numbers_are_float64_from_the_file_to_the_score(score: Any, tmp_path: Path) -> None:
    data = table(tmp_path / "data", "file,x\n1.png,1700000001\n2.png,1700000017\n")
    (tmp_path / "out.csv").write_text("id,x\n1.png,1700000001\n2.png,1700000017\n")
    (tmp_path / "out.json").write_text('{"1.png": 1700000001, "2.png": [1700000017]}')
    np.savez(tmp_path / "out.npz", vectors=np.array([1700000001, 1700000017]))
    for suffix in ("csv", "json", "npz"):
        found = figures(score("regression", tmp_path / f"out.{suffix}", data, "-f", "csv"))
        none, one = (
            dict.fromkeys(("MAE", "RMSE", "MAPE"), 0.0),
            dict.fromkeys(("R2", "Pearson", "Spearman"), 1.0),
        )
        assert found == none | one


def test_numbers_near_the_ends_of_float64_are_scored_on_a_line(score: Any, tmp_path: Path) -> None:
    data, rows = table(tmp_path / "data", "file,x\n1.png,1e308\n2.png,-1e308\n"), tmp_path / "out.csv"
    rows.write_text("id,x\n1.png,5e307\n2.png,-5e307\n")
    answer = score("regression", rows, data)
    assert (answer.code, answer.stderr) == (0, "")
    assert answer.figure("MAE") == "5.0000e+307"
    assert answer.figure("R2").startswith("0.7500")
    rows.write_text("id,x\n1.png,-1e308\n2.png,-5e307\n")
    answer = score("regression", rows, data)
    assert answer.code == 1
    assert "failed: 1.png: a number differs from its target by more than float64 holds" in answer.stdout


def test_numbers_that_are_none(score: Any, tmp_path: Path) -> None:
    data, rows = table(tmp_path / "data"), tmp_path / "out.csv"
    rows.write_text("id,x,y\n1.png,nan,-2\n2.png,1000,4\n")
    answer = score("regression", rows, data)
    assert "failed: 1.png: a number of the prediction is not finite" in answer.stdout
    rows.write_text("id,x,y\n1.png,one,-2\n")
    answer = score("regression", rows, data)
    assert answer.code == 4
    assert 'line 2: "one" is not a number' in answer.error
    named = tmp_path / "out.json"
    named.write_text('{"1.png": {"x": 1, "y": 2}, "2.png": {"y": 2, "x": 1}}')
    assert '"1.png": its values are not a list of numbers' in score("regression", named, data).error


def test_labels(score: Any, tmp_path: Path) -> None:
    data, rows = class_folders(tmp_path / "data"), tmp_path / "out.csv"
    rows.write_text("id,label\ncat/0.png,cat\ncat/1.png,dog\ndog/0.png,dog\ndog/1.png,Dog\n")
    answer = score("classification", rows, data, "-f", "csv")
    # of cat and dog: precision 1 and 2/3, recall 1/2 and 1
    few = {"top-1": 0.75, "precision": 5 / 6, "recall": 0.75, "F1": (2 / 3 + 4 / 5) / 2}
    assert figures(answer) == pytest.approx(few)
    named = tmp_path / "labels.txt"
    named.write_text("dog\ncat\nbird\n")
    whole = tmp_path / "out.json"
    whole.write_text(json.dumps({"cat/0.png": 1, "cat/1.png": 2, "dog/0.png": 0, "dog/1.png": 0}))
    found = figures(score("classification", whole, data, "-f", "csv", f"--labels={named}"))
    # of dog, cat and bird: precision 1, 1 and 0, recall 1, 1/2 and 0
    assert found == pytest.approx({"top-1": 0.75, "precision": 2 / 3, "recall": 1 / 2, "F1": 5 / 9})
    assert 'label "1" is not one of the dataset\'s classes' in score("classification", whole, data).error


CLASSES = {"cat/0.png": (0.7, 0.2, 0.1), "cat/1.png": (0.3, 0.6, 0.1), "dog/0.png": (0, 1, 0)}
CLASSES |= {"dog/1.png": (0.4, 0.5, 0.1)}


@pytest.mark.parametrize("form", ["csv", "jsonl", "json of lists", "json of objects", "npz"])
@pytest.mark.parametrize("task", ["classification", "text_classification"])
def test_probabilities(score: Any, tmp_path: Path, form: str, task: str) -> None:
    data, out = class_folders(tmp_path / "data"), tmp_path / f"out.{form.split()[0]}"
    labels, rows = ["cat", "dog", "bird"], CLASSES.items()
    if form == "csv":  # in another order than the labels
        lines = ["id,bird,Dog,cat", *(f"{key},{c},{b},{a}" for key, (a, b, c) in rows)]
        out.write_text("\n".join(lines))
    elif form == "jsonl":
        out.write_text("\n".join(json.dumps({"id": key, "probabilities": each}) for key, each in rows))
    elif form == "json of lists":
        out.write_text(json.dumps(CLASSES))
    elif form == "npz":
        np.savez(out, probabilities=np.array([*CLASSES.values()]), ids=[*CLASSES])
    else:
        out.write_text(json.dumps({key: dict(zip(labels, each, strict=True)) for key, each in rows}))
    named = tmp_path / "labels.txt"
    named.write_text("\n".join(labels))
    answer = score(task, out, data, "-f", "csv", f"--labels={named}")
    found, true = figures(answer), [0, 0, 1, 1]
    assert found["log loss"] == pytest.approx(log_loss(true, [*CLASSES.values()], labels=range(3)))
    assert found["Brier"] == pytest.approx(brier_score_loss(true, [*CLASSES.values()], labels=range(3)))
    # in the bins of 1/2, 3/5, 7/10 and 1
    assert found["ECE"] == pytest.approx((0.5 + 0.6 + 0.3 + 0) / 4)
    assert found["top-1" if task == "classification" else "accuracy"] == 0.75
    assert ("top-5" in found) is (task == "classification")
    rows = score(task, out, data, "-f", "csv", f"--labels={named}", "--per_class").rows
    assert [(row["class"], row["true_count"], row["recall"]) for row in rows] == [
        ("cat", "2", "0.5"), ("dog", "2", "1.0")
    ]  # fmt: skip
    if form in ("csv", "json of objects"):  # which name their classes
        again = figures(score(task, out, data, "-f", "csv"))
        assert again == pytest.approx(found)


@pytest.mark.parametrize(
    ("suffix", "text", "message"),
    [
        ("csv", "id,cat,dog\ncat/0.png,0.5,x\n", 'line 2: "x" is not a number'),
        ("csv", "id,cat,Cat\ncat/0.png,0.5,0.5\n", "does not have one probability for each of the 2 classes"),
        ("csv", "id,cat,cat\ncat/0.png,0.5,0.5\n", "line 1 names no columns id and numbers"),
        ("json", '{"cat/0.png": [0.5, 0.2, 0.3]}', "does not have one probability for each of the 2 classes"),
        (
            "json",
            '{"cat/0.png": {"cat": 0.5, "dog": 0.5}, "dog/0.png": {"cat": 1, "cow": 0}}',
            '"dog/0.png": does',
        ),
        ("jsonl", '{"id": "cat/0.png", "probabilities": "x"}', '"x" is not a number'),
        ("csv", "id,cat,dog\ncat/0.png,nan,1\n", "cat/0.png: a probability is not finite"),
    ],
)
def test_wrong_probabilities_are_refused(
    score: Any, tmp_path: Path, suffix: str, text: str, message: str
) -> None:
    out = tmp_path / f"out.{suffix}"
    out.write_text(text)
    answer = score("classification", out, class_folders(tmp_path / "data"))
    assert (answer.code, message in answer.error) == (4, True), answer.error


@pytest.mark.parametrize("named", [False, True])
def test_classes_that_are_numbers_have_their_order(score: Any, tmp_path: Path, named: bool) -> None:
    data, out, found = tmp_path / "data.npz", tmp_path / "out.json", np.eye(12)
    np.savez(data, inputs=found, labels=np.arange(12))
    texts = sorted(map(str, range(12)))  # 10 comes before 2
    rows = ({each: row[int(each)] for each in texts} if named else row.tolist() for row in found)
    out.write_text(json.dumps({str(n): row for n, row in enumerate(rows)}))
    answer = score("classification", out, data, "-f", "csv", "--per_class")
    assert [(row["class"], row["recall"]) for row in answer.rows] == [(str(n), "1.0") for n in range(12)]


def test_several_labels(score: Any, tmp_path: Path) -> None:
    data, out = coco(tmp_path, 4), tmp_path / "out.csv"  # the first two have a cat, no image has a dog
    out.write_text("id,labels\n1,cat\n2,cat|dog\n3,\n4,\n")
    wanted = {"micro F1": 4 / 5, "macro F1": 1 / 2, "subset accuracy": 3 / 4, "Hamming loss": 1 / 8}
    assert figures(score("multilabel", out, data, "-f", "csv")) == pytest.approx(wanted)
    rows = score("multilabel", out, data, "-f", "csv", "--per_class").rows
    assert [(row["recall"], row.get("average_precision", "")) for row in rows] == [("1.0", ""), ("0.0", "")]
    out.write_text("id,cat,dog\n1,0.9,0.1\n2,0.4,0.3\n3,0.6,0.2\n4,0,0\n")
    found = figures(score("multilabel", out, data, "-f", "csv", "--label_threshold=0.4"))
    assert found["mAP"] == pytest.approx((1 + 2 / 3) / 2 / 2)  # no dog is there, whose precision is 0
    assert found["micro F1"] == pytest.approx(4 / 5)
    lines = tmp_path / "out.jsonl"
    given = enumerate((["cat"], ["Dog"], [], []), start=1)
    lines.write_text("\n".join(json.dumps({"id": n, "labels": found}) for n, found in given))
    assert figures(score("multilabel", lines, data, "-f", "csv"))["subset accuracy"] == 3 / 4
    lines.write_text('{"id": 1, "labels": ["cow"]}')
    assert 'label "cow" is not one of the' in score("multilabel", lines, data).error


def test_a_part_of_a_label_is_no_label(score: Any, tmp_path: Path) -> None:
    data, rows = class_folders(tmp_path / "data", ("New York", "Boston"), 1), tmp_path / "out.csv"
    rows.write_text("id,label\nNew York/0.png,New\nBoston/0.png,Boston\n")
    named = tmp_path / "labels.txt"
    named.write_text("New York\nBoston\nNew Delhi\n")
    for more in ((), (f"--labels={named}",)):
        refused = score("classification", rows, data, *more)
        assert (refused.code, 'label "New" is not one of the' in refused.error) == (4, True)
    # the first word of a label is a name of the dataset, as those of ImageNet's folders
    synsets = class_folders(tmp_path / "synsets", ("n01", "n02"), 1)
    named.write_text("n01 tench, Tinca tinca\nn02 goldfish\n")
    rows.write_text("id,label\nn01/0.png,n01\nn02/0.png,n02 goldfish\n")
    assert figures(score("classification", rows, synsets, "-f", "csv", f"--labels={named}"))["top-1"] == 1.0


@pytest.mark.parametrize("label", [True, None, 1.5, ["cat"], {"cat": 1}])
def test_a_label_is_a_text_or_a_whole_number(score: Any, tmp_path: Path, label: object) -> None:
    data, whole = class_folders(tmp_path / "data", ("true", "none"), 1), tmp_path / "out.json"
    whole.write_text(json.dumps({"true/0.png": label}))
    answer = score("classification", whole, data)
    assert answer.code == 4
    assert "neither a text nor a whole number" in answer.error


def test_an_id_twice_in_an_object_is_refused(score: Any, tmp_path: Path) -> None:
    data, whole = class_folders(tmp_path / "data"), tmp_path / "out.json"
    whole.write_text('{"cat/0.png": "dog", "cat/1.png": "cat", "cat/0.png": "cat"}')
    answer = score("classification", whole, data)
    assert answer.code == 4
    assert 'out.json: has "cat/0.png" twice in one object' in answer.error


@pytest.mark.parametrize("cell", ["nan", "inf", "text"])
def test_a_table_of_values_is_one_whatever_its_first_row_holds(score: Any, tmp_path: Path, cell: str) -> None:
    data, rows = table(tmp_path / "data", f"file,x\n1.png,{cell}\n2.png,1\n"), tmp_path / "out.csv"
    rows.write_text("id,x\n1.png,1\n2.png,1\n")
    answer = score("regression", rows, data)
    assert answer.code == 4
    assert f'values.csv: line 2: "{cell}" is not a finite number' in answer.error


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("id,label\ncat/0.png,bird\n", 'label "bird" is not one of the dataset\'s classes'),
        ("id,label\ncat/0.png,cat\ncat/0.png,dog\n", 'line 3: "cat/0.png" was predicted before'),
        ("id,label\ncat/0.png\n", "line 2 has 1 columns; the first names 2"),
        ("id,class\ncat/0.png,cat\n", "line 1 names no columns id and label"),
        ("id,label\n", "holds no predictions"),
        ("id,label\ncat/0.png,cat dog\n", 'label "cat dog" is not one of the dataset\'s classes'),
        ("id,label\ncow/0.png,cat\n", 'predicts "cow/0.png", which dataset'),
    ],
)
def test_wrong_labels_are_refused(score: Any, tmp_path: Path, content: str, message: str) -> None:
    data, rows = class_folders(tmp_path / "data"), tmp_path / "out.csv"
    rows.write_text(content)
    answer = score("classification", rows, data)
    assert answer.code == 4
    assert message in answer.error


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("out.txt", "", "accepted: a .csv with a column id"),
        ("out.json", "{", "out.json: is not JSON at column 2"),
        ("out.json", "3", "is neither an object of predictions by their ids"),
        ("out.jsonl", '{"id": "cat/0.png"}', "line 1 is not an object with id and label"),
        ("out.jsonl", '{"id": true, "label": "cat"}', "line 1: its id is neither a text nor a whole number"),
    ],
)
def test_damaged_files_are_refused(score: Any, tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    answer = score("classification", tmp_path / name, class_folders(tmp_path / "data"))
    assert answer.code == 4
    assert message in answer.error


def test_a_missing_file(score: Any, tmp_path: Path) -> None:
    answer = score("detection", tmp_path / "none.json", coco(tmp_path))
    assert answer.code == 4
    assert "none.json: cannot be read: No such file" in answer.error


def test_the_scores_are_drawn(score: Any, tmp_path: Path) -> None:
    data, found = coco(tmp_path), results(tmp_path / "found.json", RIGHT)
    answer = score("detection", found, data, f"--plot={tmp_path / 'scores.svg'}")
    assert (answer.code, answer.error) == (0, f"drawn to {tmp_path / 'scores.svg'}")
    picture = (tmp_path / "scores.svg").read_text()
    assert "AP50" in picture
    assert "precision at IoU 0.5" in picture
    again = score("detection", found, data, f"--plot={tmp_path / 'scores.svg'}")
    assert "exists" in again.error


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--output={plot}", "--overwrite"), "the picture and the rows cannot both go to"),
        (("--append", "--overwrite"), "append and overwrite exclude each other"),
    ],
)
def test_a_picture_that_would_replace_the_rows_is_refused(
    score: Any, tmp_path: Path, more: tuple[str, ...], message: str
) -> None:
    data, found, plot = coco(tmp_path), results(tmp_path / "found.json", RIGHT), tmp_path / "scores.svg"
    answer = score("detection", found, data, f"--plot={plot}", *(each.format(plot=plot) for each in more))
    assert (answer.code, message in answer.error) == (2, True)
    assert not plot.exists()


def test_answers(score: Any, tmp_path: Path) -> None:
    questions = tmp_path / "questions.jsonl"
    rows = [
        {"id": "a", "question": "who", "context": "It is the cat.", "answers": ["the cat"]},
        {"id": "b", "question": "what", "context": "Nothing.", "answers": []},
        {"id": "c", "question": "where", "context": "In Rome.", "answers": ["Rome"]},
    ]
    questions.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    answers = tmp_path / "predictions.json"  # as SQuAD's script reads them
    answers.write_text(json.dumps({"a": "Cat!", "b": "", "c": "Paris"}))
    assert figures(score("qa", answers, questions, "-f", "csv"))["exact match"] == pytest.approx(2 / 3)
    answers.write_text(json.dumps({"a": "Cat!", "c": 3}))
    refused = score("question-answering", answers, questions)
    assert (refused.code, '"c": its answer is not text' in refused.error) == (4, True)


def test_labels_of_texts(score: Any, tmp_path: Path) -> None:
    texts = tmp_path / "texts.csv"
    texts.write_text("id,text,label\n1,fine,good\n2,awful,bad\n3,great,good\n")
    predicted = tmp_path / "out.csv"
    predicted.write_text("id,label\n1,good\n2,good\n3,good\n")
    found = figures(score("text_classification", predicted, texts, "-f", "csv"))
    wanted = {"accuracy": 2 / 3, "F1": 0.4, "precision": 1 / 3, "recall": 1 / 2}
    assert found == pytest.approx(wanted)


def test_vectors(score: Any, tmp_path: Path) -> None:
    texts = tmp_path / "texts.csv"
    texts.write_text("id,text,label\n1,fine,good\n2,awful,bad\n3,great,good\n4,ugly,bad\n")
    vectors = tmp_path / "out.npz"
    np.savez(vectors, vectors=np.array([[1, 0], [0, 1], [1, 0.1], [0.1, 1]]))
    assert figures(score("embedding", vectors, texts, "-f", "csv"))["recall@1"] == 1.0
    np.savez(vectors, vectors=np.ones((4, 2)), ids=["1", "2", "3", "9"])
    assert 'predicts "9", which dataset' in score("embedding", vectors, texts).error
    np.savez(vectors, vectors=np.ones((3, 2)))
    assert "has 3 vectors; dataset" in score("embedding", vectors, texts).error
    vectors.write_bytes(b"PK")
    assert "out.npz: is not an .npz of plain arrays" in score("embedding", vectors, texts).error


def test_intervals_from_python(tmp_path: Path) -> None:
    texts, vectors = tmp_path / "texts.csv", tmp_path / "out.npz"
    texts.write_text("id,text,label\n1,fine,good\n2,awful,bad\n3,great,good\n4,ugly,bad\n")
    np.savez(vectors, vectors=np.array([[1, 0], [0, 1], [1, 0.1], [0.1, 1]]))

    interval = inferometer.score(vectors, task="embedding", dataset_path=texts).interval("recall@1")

    assert interval is not None
    assert 0.3 < interval.low < interval.high == 1.0


def test_scores_from_python(tmp_path: Path) -> None:
    data, found = coco(tmp_path), results(tmp_path / "found.json", RIGHT)
    scores = inferometer.score(found, task="detection", dataset_path=data)
    assert (scores.samples, scores.failures) == (3, {})
    assert scores.value("AP50") == pytest.approx(HALF)
    assert scores.interval("AP50") is None  # of three images
    assert scores[0]["score_name"] == "AP"
    assert "AP50" in repr(scores)
    assert "<svg" in scores._repr_html_()
    only = inferometer.score(found, task="detection", dataset_path=data, sample_ids=["1"])
    assert only.value("AP50") == pytest.approx(1)
    with pytest.raises(ConfigurationError, match="score_channels"):
        inferometer.score(found, task="detection", dataset_path=data, score_channels="Z")
