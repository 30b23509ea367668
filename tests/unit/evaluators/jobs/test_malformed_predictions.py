"""Files of predictions and datasets in which one value is wrong: a result, or an error in one line."""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from inferometer.evaluators.jobs.job import DatasetChoice
from inferometer.evaluators.scoring.score import ScoreRequest, score
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.errors import InferometerError
from tests.scored_files import RIGHT, RUNS, class_folders, coco
from tests.task_dataset_files import table

CASES = 30
"""Of each file; all of them take minutes."""
REMOVED = object()
VALUES = (
    REMOVED, None, [], {}, [[1]], {"a": None}, "", "text", "1234", "\ud800", True, False, float("nan"),
    float("inf"), -1, 0, 0.5, 2, 1e308, -1e308, 5e-324, 10**400, -(10**400), [None], [True], ["1"],
)  # fmt: skip
FOREIGN = re.compile(
    r"'(NoneType|list|dict|str|int|float|bool)'|object is not (?!a number$)|"
    r"could not convert|unhashable|indices must|"
    r"invalid literal|unpack|argument|required|too large to convert|codec can't|Traceback|cannot convert|"
    r"inhomogeneous|Expecting |<class|Error\b"
)
"""What Python and NumPy say."""

TEXTS = [
    {"id": "a", "text": "fine", "label": "good", "target": [1.0, 2.0]},
    {"id": "b", "text": "awful", "label": "bad", "target": [2.0, 0.5]},
    {"id": "c", "text": "great", "label": "good", "target": [0.0, 1.5]},
]
SQUAD = {
    "data": [
        {
            "paragraphs": [
                {
                    "context": "Ada met Charles.",
                    "qas": [
                        {"id": "a", "question": "Who?", "answers": [{"text": "Ada"}], "is_impossible": False},
                        {"id": "b", "question": "Where?", "answers": [], "is_impossible": True},
                    ],
                }
            ]
        }
    ]
}
FOUND = [RIGHT | {"segmentation": RUNS}, RIGHT | {"image_id": 2, "score": 0.5, "segmentation": RUNS}]
VECTORS = [{"id": name, "values": [1.0, place]} for place, name in enumerate("abc")]
LABELS = [{"id": name, "label": "good"} for name in "abc"]
LINES = "".join(f"{json.dumps(row)}\n" for row in TEXTS)


def texts(folder: Path) -> Path:
    (folder / "texts.jsonl").write_text(LINES)
    return folder / "texts.jsonl"


def squad(folder: Path) -> Path:
    (folder / "squad.json").write_text(json.dumps(SQUAD))
    return folder / "squad.json"


PREDICTIONS: dict[str, tuple[str, Callable[[Path], Path], Any]] = {
    "boxes": ("detection", coco, FOUND),
    "masks": ("instance_segmentation", coco, FOUND),
    "boxes of masks": ("detection", coco, [{k: v for k, v in each.items() if k != "bbox"} for each in FOUND]),
    "labels of images": (
        "classification",
        class_folders,
        [{"id": f"{name}/{number}.png", "label": name} for name in ("cat", "dog") for number in range(2)],
    ),
    "labels by id": ("text_classification", texts, {"a": "good", "b": "bad", "c": "good"}),
    "labels": ("text_classification", texts, LABELS),
    "answers": ("question_answering", squad, {"a": "Ada", "b": ""}),
    "numbers": (
        "regression",
        table,
        [{"id": "1.png", "values": [1, 2]}, {"id": "2.png", "values": [3, 4.5]}],
    ),
    "vectors": ("embedding", texts, VECTORS),
}
"""The task, what makes the dataset, and the predictions that are changed."""


def places(content: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The place of each value in JSON, the whole first."""
    yield place
    inner = (
        content.items()
        if isinstance(content, dict)
        else enumerate(content)
        if isinstance(content, list)
        else ()
    )
    for key, value in inner:
        yield from places(value, (*place, key))


def changed(content: Any, place: tuple[Any, ...], value: Any) -> Any:
    if not place:
        return None if value is REMOVED else value
    found = copy.deepcopy(content)
    part = found
    for key in place[:-1]:
        part = part[key]
    if value is REMOVED:
        del part[place[-1]]
    else:
        part[place[-1]] = value
    return found


def cases(content: Any, name: str) -> list[tuple[tuple[Any, ...], Any]]:
    every = [(place, value) for place in places(content) for value in VALUES]
    return random.Random(name).sample(every, min(CASES, len(every)))


def check(task: str, predictions: Path, dataset: Path, what: object) -> None:
    """Scores: warnings are errors, and so is any other exception than the program's own."""
    request = ScoreRequest(task=task, predictions=predictions, dataset=DatasetChoice(path=dataset))
    try:
        found = score(request, Catalog(), None)
    except InferometerError as error:
        messages = [str(error)]
    else:
        messages = [each.message for each in found.failures]
        assert all(value.value is None or abs(value.value) < float("inf") for value in found.result.scores), (
            what
        )
    for message in messages:
        assert len(message.splitlines()) == 1, what
        assert message.isprintable(), (what, message)
        assert not FOREIGN.search(message), (what, message)


@pytest.mark.parametrize("name", PREDICTIONS)
def test_predictions_with_a_wrong_value(name: str, tmp_path: Path) -> None:
    task, made, content = PREDICTIONS[name]
    dataset, path = (
        made(tmp_path / "data" if made is not texts and made is not squad else tmp_path),
        tmp_path / "out.json",
    )
    for place, value in cases(content, name):
        path.write_text(json.dumps(changed(content, place, value)))
        check(task, path, dataset, (place, value))


@pytest.mark.parametrize("task", ["detection", "instance_segmentation"])
def test_a_coco_dataset_with_a_wrong_value(task: str, tmp_path: Path) -> None:
    file = coco(tmp_path) / "annotations.json"
    content, path = json.loads(file.read_text()), tmp_path / "out.json"
    path.write_text(json.dumps(FOUND))
    for place, value in cases(content, task):
        file.write_text(json.dumps(changed(content, place, value)))
        check(task, path, file, (place, value))


@pytest.mark.parametrize(("task", "predictions"), [("text_classification", LABELS), ("embedding", VECTORS)])
def test_texts_with_a_wrong_value(task: str, predictions: Any, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.write_text(json.dumps(predictions))
    for place, value in cases(TEXTS, task):
        rows = changed(TEXTS, place, value)
        lines = rows if isinstance(rows, list) else [rows]
        (tmp_path / "texts.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in lines))
        check(task, path, tmp_path / "texts.jsonl", (place, value))


def test_squads_file_with_a_wrong_value(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.write_text(json.dumps({"a": "Ada", "b": ""}))
    for place, value in cases(SQUAD, "squad"):
        (tmp_path / "squad.json").write_text(json.dumps(changed(SQUAD, place, value)))
        check("question_answering", path, tmp_path / "squad.json", (place, value))


@pytest.mark.parametrize("cell", ["nan", "inf", "text", "", "1e400", "1e308", "-1e308", "5e-324", '"', "\0"])
def test_tables_with_a_wrong_cell(cell: str, tmp_path: Path) -> None:
    found = tmp_path / "out.csv"
    found.write_text("id,x,y\n1.png,1.5,-2\n2.png,1000,4\n")
    check("regression", found, table(tmp_path, f"file,x,y\n1.png,{cell},2\n2.png,3,4\n"), cell)
    found.write_text(f"id,x,y\n1.png,{cell},-2\n2.png,1000,4\n")
    check("regression", found, table(tmp_path), cell)
