"""Mistakes of new users: one clear line on stderr, and a nonzero exit code."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from inferometer.agent.inference.registry import FrameworkEntry, Registry

DATASET = ("predict", "dataset")
LATENCY = ("info", "evaluation", "latency")


@pytest.mark.parametrize(
    ("arguments", "code", "parts"),
    [
        ((*DATASET, "--model_name=DigitCNN"), 2, ['unknown model "DigitCNN"', 'did you mean "DigitsCNN"']),
        ((*DATASET, "--model_name=Digits\nCNN"), 2, ["unknown model", "Digits CNN"]),
        ((*DATASET, "--model_version=2.0"), 2, ["DigitsCNN", "2.0", "1.0"]),
        ((*DATASET, "--model_version=one"), 2, ['"one"', "version"]),
        (
            (*DATASET, "--framework_name=pytroch"),
            2,
            ['unknown framework "pytroch"', 'did you mean "PyTorch"?'],
        ),
        ((*DATASET, "--batch_size=0"), 2, ["--batch_size", "0", "x>=1"]),
        ((*DATASET, "--batch_size=many"), 2, ["--batch_size", "many"]),
        (("measure", "memory", "--batch_sizes=0,1"), 2, ["--batch_sizes", "0 is not in the range x>=1"]),
        (("measure", "memory", "--batch_sizes=a"), 2, ["--batch_sizes", "a is not a number; write one, or"]),
        ((*DATASET, "--num_file_parts=0"), 2, ["num_file_parts", "-1 for all"]),
        ((*DATASET, "--num_file_parts=-2"), 2, ["num_file_parts", "-2"]),
        ((*DATASET, "--min_duration=-1"), 2, ["--min_duration", "-1", "x>=0"]),
        ((*DATASET, "--min_duration=nan"), 2, ["--min_duration", "nan is not a finite number"]),
        ((*DATASET, "--min_batches=-1"), 2, ["--min_batches", "-1"]),
        ((*DATASET, "--target_ci=0"), 2, ["--target_ci", "0"]),
        ((*DATASET, "--target_ci=nan"), 2, ["--target_ci", "nan is not a finite number"]),
        ((*DATASET, "--time_budget=0"), 2, ["--time_budget", "0"]),
        (
            (*DATASET, "--min_duration=9", "--time_budget=3"),
            2,
            ["min_duration 9 s is longer than time_budget 3 s"],
        ),
        (
            (*DATASET, "--num_file_parts=2", "--time_budget=3"),
            2,
            ["time_budget limits how long", "but here it is not repeated"],
        ),
        ((*DATASET, "--repeat=0"), 2, ["--repeat", "0"]),
        ((*DATASET, "--threads=100000"), 2, ["threads is 100000; at most 1024"]),
        ((*DATASET, "--preprocess_threads=100000"), 2, ["preprocess_threads is 100000; at most 1024"]),
        ((*DATASET, "--batch_size=99999999999999999999"), 2, ["batch_size", "at most 2147483647"]),
        ((*DATASET, "--gpu=maybe"), 2, ["--gpu", "maybe"]),
        ((*DATASET, "--trace_level=MODEL"), 2, ['unknown trace level "MODEL"', "MODEL_TRACE"]),
        ((*DATASET, "--dataset_name=imagenet"), 2, ['unknown dataset "imagenet"', "digits_validation"]),
        (
            (*DATASET, "--dataset_name=digits_validation", "--dataset_category=audio"),
            2,
            ['"audio"', "vision"],
        ),
        ((*DATASET, "--dataset_path=nowhere"), 4, ["nowhere", "does not exist"]),
        (
            (*DATASET, "--dataset_path=.", "--dataset_name=digits_validation"),
            2,
            ["path and dataset_name both"],
        ),
        ((*DATASET, "--config=nowhere.yaml"), 2, ["nowhere.yaml", "No such file"]),
        (("--config=nowhere.yaml", *DATASET), 2, ["nowhere.yaml", "No such file"]),
        ((*DATASET, "--manifests=nowhere"), 2, ["nowhere", "does not exist"]),
        ((*DATASET, "--database_address=127.0.0.1:1"), 5, ["127.0.0.1:1", "refused"]),
        ((*DATASET, "--database_address=http://x"), 2, ["http://x", "mongodb://"]),
        ((*DATASET, "--database_name=../x"), 2, ["../x"]),
        ((*DATASET, "--agent=127.0.0.1:1"), 6, ["127.0.0.1:1"]),
        ((*DATASET, "--agent=nonsense"), 2, ["nonsense", "host:port"]),
        ((*DATASET, "--gpu", "--framework_name=PyTorch"), 3, ["PyTorch", "gpu:0"]),
        ((*DATASET, "--gpu", "--framework_name=MXNet"), 3, ["MXNet", "gpu:0"]),
        ((*DATASET, "--gpu", "--framework_name=ONNXRuntime"), 3, ["ONNX Runtime", "gpu:0"]),
        ((*DATASET, "--bogus"), 2, ["--bogus"]),
        (("predict", "datset"), 2, ["datset", "dataset"]),
        (("info", "evaluation", "latncy"), 2, ["latncy"]),
        ((*LATENCY, "--format=xml"), 2, ["xml", "table", "csv", "json"]),
        ((*LATENCY, "--limit=0"), 2, ["limit", "-1 for all"]),
        ((*LATENCY, "--output=nowhere/x.csv"), 7, ["nowhere"]),
        (
            (*LATENCY, "--database_address=mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=100"),
            5,
            ["127.0.0.1:1"],
        ),
        (("database", "import", "nowhere.json"), 5, ["nowhere.json"]),
        (("serve", "--port=99999"), 2, ["--port", "99999"]),
        (("serve", "--local", "--host=0.0.0.0"), 2, ["--local", "0.0.0.0"]),
    ],
)
def test_one_line_says_what_is_wrong(agent, monkeypatch, tmp_path, arguments, code, parts):
    monkeypatch.chdir(tmp_path)
    answer = agent(*arguments)
    assert answer.code == code, answer.stderr
    assert answer.stdout == ""
    for part in parts:
        assert part in answer.error
    assert "Traceback" not in answer.stderr


def test_framework_that_is_not_installed_comes_with_its_pip_line(agent, monkeypatch):
    entry = FrameworkEntry("TensorFlow", "nowhere:Predictor", ("no-such-distribution",), "pip install that")
    monkeypatch.setattr(Registry, "discover", classmethod(lambda cls: Registry((entry,))))
    answer = agent(*DATASET, "--framework_name=tensorflow")
    assert answer.code == 3
    assert answer.error == "agent: framework TensorFlow is not installed; install it with: pip install that"
    listed = agent("info", "frameworks", "-f", "csv").rows
    assert [(row["installed_version"], row["install"]) for row in listed] == [("", "pip install that")]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("framework: [1, 2]\n", ["framework"]),
        ("databse: {}\n", ["databse", "database"]),
        ("a: b: c\n", ["is not YAML"]),
        ("- a\n", ["config.yaml"]),
    ],
)
def test_bad_configuration_names_file_and_field(agent, tmp_path, text, parts):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    answer = agent("info", "models", "--config", path)
    assert answer.code == 2
    assert str(path) in answer.error
    for part in parts:
        assert part in answer.error


def test_broken_manifest_of_the_user_is_said_and_takes_nothing_down(agent, tmp_path):
    (tmp_path / "broken.yml").write_text("name: Broken\nversoin: 1\n")
    answer = agent("info", "models", "--manifests", tmp_path, "-f", "csv")
    assert answer.code == 0
    assert "DigitsCNN" in {row["name"] for row in answer.rows}
    assert "broken.yml" in answer.error


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_data_directory_that_cannot_be_written(agent, tmp_path, monkeypatch):
    tmp_path.chmod(0o500)
    monkeypatch.setenv("AGENT_DATA_DIR", str(tmp_path / "data"))
    assert agent(*DATASET).code == 5


def test_data_directory_below_a_file(agent, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AGENT_DATA_DIR", str(tmp_path / "file" / "data"))
    answer = agent(*DATASET)
    assert answer.code == 5
    assert str(Path("file", "data")) in answer.error


def test_dataset_of_other_classes_fails_before_the_model_runs(agent, tmp_path):
    from PIL import Image

    for label in ("cat", "dog"):
        (tmp_path / label).mkdir()
        Image.new("L", (8, 8)).save(tmp_path / label / "1.png")
    answer = agent(*DATASET, "--dataset_path", tmp_path)
    assert answer.code == 4
    assert '"cat"' in answer.stderr.splitlines()[-1]
    assert answer.stdout.count("\n") == 1, "what was to be measured"
