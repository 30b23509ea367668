"""Texts in JSON lines, CSV and SQuAD's JSON: what they hold, and what is wrong with a line."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from inferometer.agent.preprocessing.inputs import Text
from inferometer.evaluators.datasets.base import AcceptedAnswers, ClassNames, Dataset, TargetValues
from inferometer.evaluators.datasets.opening import backend_of, may_hold_tensors, open_path
from inferometer.manifests.errors import DatasetError


def opened(folder: Path, name: str, content: str | bytes) -> Dataset:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return open_path(path, "text")


def texts(dataset: Dataset) -> list[object]:
    return [sample.read() for sample in dataset]


def test_json_lines_hold_texts_with_labels(tmp_path: Path) -> None:
    dataset = opened(
        tmp_path,
        "a.jsonl",
        '\ufeff{"text": "good \\n film", "label": "good"}\r\n\n'
        '{"sentence": "schlecht – ja", "label": 0, "more": [1]}\n{"id": "x", "text": "none"}',
    )
    assert texts(dataset) == [Text("good \n film"), Text("schlecht – ja"), Text("none")]
    assert [(sample.id, sample.label) for sample in dataset] == [("1", "good"), ("3", "0"), ("x", None)]
    assert dataset.backend == "jsonl"
    assert len(dataset) == dataset.identity.size == 3
    assert (dataset.identity.checksum or "").startswith("sha256:")
    again = pickle.loads(pickle.dumps(dataset))
    assert again.identity == dataset.identity
    assert again.sample(1).read() == Text("schlecht – ja")


@pytest.mark.parametrize(("name", "tab"), [("a.csv", ","), ("a.tsv", "\t"), ("A.CSV", ",")])
def test_a_csv_holds_texts_with_labels(tmp_path: Path, name: str, tab: str) -> None:
    lines = ["id,text,label", '7,"good, they said', ' and ""fine""",good', "", "8,bad,bad"]
    content = "\n".join(lines) if tab == "," else "\n".join(lines).replace(",", tab)
    dataset = opened(tmp_path, name, content)
    assert texts(dataset)[1] == Text("bad")
    first = dataset.sample(0).read()
    assert isinstance(first, Text)
    assert first.text == f'good{tab} they said\n and "fine"'
    assert [sample.label for sample in dataset] == ["good", "bad"]
    assert [sample.id for sample in dataset] == ["7", "8"]


def test_a_row_of_a_csv_has_the_number_of_its_first_line(tmp_path: Path) -> None:
    dataset = opened(tmp_path, "a.csv", 'text\n"two\nlines"\none\n')
    assert [sample.id for sample in dataset] == ["2", "4"]


def test_columns_without_a_name_are_allowed_in_a_csv(tmp_path: Path) -> None:
    assert texts(opened(tmp_path, "a.csv", "text,,\na,,1\n")) == [Text("a")]


def test_pairs_answers_and_targets(tmp_path: Path) -> None:
    rows = [
        {"question": "who?", "context": "Ada.", "answers": ["Ada", "she"]},
        {"question": "when?", "context": "Ada.", "answers": []},
        {"question": "how?", "context": "Ada.", "answers": {"text": ["so"], "answer_start": [3]}},
        {"sentence1": "a", "sentence2": "b", "answer": "c"},
        {"text": "a", "pair": "b", "target": [1, 2.5]},
        {"text": "a", "pair": None},
    ]
    dataset = opened(tmp_path, "a.ndjson", "\n".join(map(json.dumps, rows)))
    assert texts(dataset)[0] == Text("who?", "Ada.")
    assert texts(dataset)[3:] == [Text("a", "b"), Text("a", "b"), Text("a")]
    truths = [sample.read_truth() for sample in dataset]
    assert truths[:4] == [
        AcceptedAnswers(("Ada", "she")),
        AcceptedAnswers(()),
        AcceptedAnswers(("so",)),
        AcceptedAnswers(("c",)),
    ]
    assert isinstance(truths[4], TargetValues)
    assert truths[4].values.tolist() == [1, 2.5]
    assert truths[5] is None


def test_lists_in_a_csv_are_written_as_in_json(tmp_path: Path) -> None:
    content = 'question,context,answers\nwho?,Ada.,"[""Ada""]"\n'
    assert opened(tmp_path, "a.csv", content).sample(0).read_truth() == AcceptedAnswers(("Ada",))
    truth = opened(tmp_path, "b.csv", 'text,target\na,"[1, 2]"\n').sample(0).read_truth()
    assert isinstance(truth, TargetValues)
    assert truth.values.tolist() == [1, 2]


SQUAD: dict[str, Any] = {
    "version": "v2.0",
    "data": [
        {
            "title": "Ada",
            "paragraphs": [
                {
                    "context": "Ada met Charles.",
                    "qas": [
                        {"id": "5a", "question": "Who?", "answers": [{"text": "Ada", "answer_start": 0}]},
                        {"id": "5b", "question": "Where?", "answers": [], "is_impossible": True},
                    ],
                }
            ],
        }
    ],
}


@pytest.mark.parametrize("indent", [None, 1])
def test_squads_own_file_is_a_dataset(tmp_path: Path, indent: int | None) -> None:
    dataset = opened(tmp_path, "dev-v2.0.json", json.dumps(SQUAD, indent=indent))
    assert dataset.backend == "squad"
    assert texts(dataset) == [Text("Who?", "Ada met Charles."), Text("Where?", "Ada met Charles.")]
    assert [(sample.id, sample.read_truth()) for sample in dataset] == [
        ("5a", AcceptedAnswers(("Ada",))),
        ("5b", AcceptedAnswers(())),
    ]


def test_another_json_is_no_dataset_of_texts(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"is none that can be read; accepted: .*texts in a \.jsonl"):
        opened(tmp_path, "a.json", '{"people": []}')


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            [*SQUAD["data"], {"title": "x"}],
            "before question 3: is not in SQuAD's format: paragraphs is missing",
        ),
        ([{"paragraphs": 3}], "before question 1: is not in SQuAD's format: paragraphs is 3, not a list"),
        ([*SQUAD["data"], {"paragraphs": [{}]}], "before question 3: .*: qas is missing"),
        ([{"paragraphs": [{"context": "x", "qas": [{"id": "1"}]}]}], "question 1: .*: answers is missing"),
    ],
)
def test_a_damaged_part_of_squads_json_is_named(tmp_path: Path, data: Any, message: str) -> None:
    with pytest.raises(DatasetError, match=rf"b\.json: {message}"):
        opened(tmp_path, "b.json", json.dumps({"data": data}))


def test_files_of_texts_may_hold_what_is_no_image(tmp_path: Path) -> None:
    for name in ("a.jsonl", "a.csv"):
        (tmp_path / name).write_text("text\n")
        assert may_hold_tensors(tmp_path / name)
        assert backend_of(tmp_path / name) == name.partition(".")[2]


GOOD = '{"text": "a"}\n'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (GOOD + '{"text": "a"', "line 2: is not JSON at column "),
        (GOOD + '["a"]', "line 2: is not a JSON object"),
        (GOOD + "[" * 100_000, "line 2: is JSON that"),
        (GOOD.encode() + b'{"text": "\xff"}', "line 2: is not UTF-8 at byte 10"),
        (GOOD + '{"label": "a"}', 'line 2: needs exactly one of .*"text" and "sentence", .* it has: label'),
        ('{"text": "a", "sentence": "b"}', "line 1: needs exactly one of .* it has: text, sentence"),
        (GOOD + '{"text": 3}', "line 2: text is not text"),
        (GOOD + '{"text": null}', "line 2: text is not text"),
        ('{"text": "\\ud800"}', "line 1: text holds half of a surrogate pair"),
        ('{"text": "a", "label": 1.5}', "line 1: label is neither a text nor a whole number"),
        ('{"text": "a", "label": true}', "line 1: label is neither"),
        ('{"text": "a", "label": " "}', "line 1: label is empty"),
        ('{"text": "a", "labels": {"x": 1}}', "line 1: labels is .* not a list"),
        ('{"text": "a", "labels": ["x", 1.5]}', "line 1: the label 1.5 is neither a text nor a whole number"),
        ('{"text": "a", "labels": "x||y"}', 'line 1: the label "" is neither'),
        ('{"text": "a", "labels": "[1"}', "line 1: labels: is not JSON"),
        ('{"text": "a", "labels": ["x"], "answer": "y"}', "line 1: has answer and labels"),
        ('{"text": "a", "answers": [1]}', "line 1: answers is not a list of texts"),
        ('{"text": "a", "answers": "x"}', "line 1: answers is not a list; write it as in JSON"),
        ('{"text": "a", "answer": "x", "target": [1]}', "line 1: has answer and target"),
        ('{"text": "a", "target": [1, NaN]}', "line 1: target is not a list of finite numbers"),
        ('{"text": "a", "target": [[1], [2]]}', "line 1: target is not a list of finite numbers"),
        ('{"id": 1, "text": "a"}\n{"id": "1", "text": "b"}', "two rows have the id 1"),
        ('{"id": [], "text": "a"}', "line 1: id is neither a text nor a whole number"),
        ("\n \n", "holds no texts"),
    ],
)
def test_a_bad_line_of_json_is_named(tmp_path: Path, content: str | bytes, message: str) -> None:
    with pytest.raises(DatasetError, match=message) as caught:
        opened(tmp_path, "a.jsonl", content)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("text,label\na,b\nc\n", "line 3: has 1 values; the header has 2 columns"),
        ("text\na,b\n", "line 2: has 2 values; the header has 1 columns"),
        ('text\n"a\nb', "line 2: is not CSV"),
        (b"text\na\n\xff\n", "line 3: is not UTF-8"),
        ("words\na\n", "line 2: found words = a; the model"),
        ("text,a,a\nx,1,2\n", "line 1: two columns have the same name"),
        ("text,label\na,\n", "line 2: label is empty"),
        ("text\n", "holds no texts"),
        ("", "holds no texts"),
    ],
)
def test_a_bad_line_of_a_csv_is_named(tmp_path: Path, content: str | bytes, message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        opened(tmp_path, "a.csv", content)


def test_several_labels_are_a_list_or_between_bars(tmp_path: Path) -> None:
    lines = '{"text": "a", "labels": ["x", 2, "x"]}\n{"text": "b", "labels": []}\n{"text": "c"}'
    truths = [sample.truth for sample in opened(tmp_path, "a.jsonl", lines)]
    assert truths == [ClassNames(("x", "2")), ClassNames(()), None]
    table = 'text,labels\na, x |y\nb,\nc,"[""x|y""]"\n'
    truths = [sample.truth for sample in opened(tmp_path, "a.csv", table)]
    assert truths == [ClassNames(("x", "y")), ClassNames(()), ClassNames(("x|y",))]
