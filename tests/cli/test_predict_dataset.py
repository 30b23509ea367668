"""``agent predict dataset`` as a user runs it, with every framework, on the shipped dataset."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from inferometer.manifests.files import BUILTIN

FRAMEWORKS = ("PyTorch", "MXNet", "ONNXRuntime")
DIGITS = BUILTIN / "datasets" / "digits_validation" / "digits_validation.zip"


def class_folders(folder: Path, count: int) -> Path:
    """The first ``count`` digits as a folder of class folders."""
    with zipfile.ZipFile(DIGITS) as archive:
        names = sorted(archive.namelist(), key=lambda name: name.rpartition("/")[2])
        for name in names[:count]:
            archive.extract(name, folder)
    return folder


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_summary_says_what_was_measured(agent, framework):
    answer = agent(
        "predict", "dataset", "--num_file_parts=-1", f"--framework_name={framework}", "--batch_size=32"
    )
    assert answer.code == 0
    assert answer.stderr == ""
    assert re.fullmatch(
        rf"DigitsCNN 1\.0 on {framework} \S+ \(cpu, threads: \d+, local\) over digits_validation, 450 inputs",
        answer.stdout.splitlines()[0],
    )
    top1 = re.fullmatch(r"(0\.\d{4}) \[0\.\d{4}, 0\.\d{4}\]  \((\d+) of 450 inputs\)", answer.figure("top-1"))
    assert top1
    assert float(top1[1]) == pytest.approx(int(top1[2]) / 450, abs=5e-5)
    assert float(top1[1]) >= 0.97
    assert answer.figure("failures") == "0"
    assert "over 14 full batches" in answer.figure("latency")
    assert re.search(r"\d inputs/s \(model\) +\d.* inputs/s \(end to end\)", answer.figure("throughput"))
    assert answer.figure("evaluation") in answer.figure("published")


def test_a_small_dataset_is_repeated_and_each_input_counts_once(agent):
    answer = agent("predict", "dataset", "--framework_name=ONNXRuntime", "--batch_size=50", "--time_budget=4")
    assert answer.code == 0, answer.stderr
    assert re.search(r"\(\d+ of 450 inputs\)", answer.figure("top-1"))
    found = re.search(r"over (\d+) full batches within this process$", answer.figure("latency"))
    assert found, answer.stdout
    assert int(found[1]) > 9
    [row] = agent("info", "evaluation", "latency", "-f", "csv").rows
    assert row["measured_batches"] == found[1]


def test_many_batches_have_intervals_and_few_say_what_they_need(agent):
    few = ("predict", "dataset", "--framework_name=ONNXRuntime", "--batch_size=2", "--publish=false")
    many = agent(*few, "--min_batches=500").figure("latency")
    assert "over 500 full batches" in many
    assert re.search(r"p99 \d+\.\d+  ms", many)
    none = agent(*few, "--num_file_parts=20")
    needs = "p90 needs 50 full batches  p99 needs 500 full batches  ms per batch of 2, over 20 full batches"
    assert needs in none.figure("latency")
    assert re.search(r"^ +no 95 % intervals, which need \d+ full batches", none.stdout, re.MULTILINE)


def test_repeating_starts_processes_and_gives_the_interval_over_them(agent):
    few = ("predict", "dataset", "--framework_name=ONNXRuntime", "--num_file_parts=12", "--batch_size=4")
    answer = agent(*few, "--repeat=2")
    assert answer.code == 0, answer.stderr
    interval = r"\d+\.\d+ \[\d+\.\d+, \d+\.\d+\]"
    assert re.fullmatch(f"p50 {interval}  mean {interval}  ms over 2 processes", answer.figure("processes"))
    rows = agent("info", "evaluation", "latency", "--id", answer.figure("group"), "-f", "csv").rows
    assert [row["process"] for row in rows] == ["2", "1"]
    assert answer.stdout.count("DigitsCNN 1.0 on ONNXRuntime") == answer.stdout.count("published") == 2
    wrong = agent(*few, "--repeat=2", "--model_name=DigitCNN")
    assert wrong.code == 2
    assert wrong.stderr.splitlines()[-1].startswith('agent: unknown model "DigitCNN"; did you mean')


def test_frameworks_agree_to_the_sample(agent):
    hits = set()
    for framework in FRAMEWORKS:
        answer = agent(
            "predict", "dataset", "--num_file_parts=-1", f"--framework_name={framework}", "-b", "64"
        )
        hits.add(answer.figure("top-1"))
    assert len(hits) == 1
    report = agent("info", "evaluation", "accuracy", "--model_name=digitscnn", "-f", "csv")
    assert [row["framework_name"] for row in report.rows] == list(reversed(FRAMEWORKS))
    assert {(row["top1_accuracy"], row["evaluated_inputs"]) for row in report.rows} == {
        (report.rows[0]["top1_accuracy"], "450")
    }


def test_parts_limit_what_is_evaluated_and_counted(agent):
    answer = agent("predict", "dataset", "--batch_size=4", "--partition_list_size=10", "--num_file_parts=3")
    assert answer.code == 0
    assert "of 30 inputs" in answer.figure("top-1")
    assert "over 7 full batches" in answer.figure("latency")


def test_batch_that_nothing_fills_gives_accuracy_but_no_latency(agent):
    answer = agent("predict", "dataset", "--num_file_parts=-1", "--batch_size=600")
    assert answer.code == 0
    assert "of 450 inputs" in answer.figure("top-1")
    assert answer.figure("latency") == (
        "not known: no batch held 600 inputs; give a batch_size of 450 or less, which the largest held"
    )


def test_framework_comes_from_flag_then_environment_then_configuration(agent, tmp_path, monkeypatch):
    config = tmp_path / "config.yaml"
    config.write_text("framework: ONNXRuntime\n")
    few = ("--num_file_parts=1", "--publish=false", f"--config={config}")
    assert "on ONNXRuntime" in agent("predict", "dataset", *few).stdout
    monkeypatch.setenv("AGENT_FRAMEWORK", "MXNet")
    assert "on MXNet" in agent("predict", "dataset", *few).stdout
    assert "on PyTorch" in agent("predict", "dataset", *few, "--framework_name", "pytorch").stdout


@pytest.mark.parametrize("kind", ["folder", "zip", "npz"])
def test_dataset_path_may_be_a_folder_a_zip_or_arrays(agent, tmp_path, kind):
    folder = class_folders(tmp_path / "digits", 20)
    path = folder
    if kind == "zip":
        path = tmp_path / "digits.zip"
        with zipfile.ZipFile(path, "w") as archive:
            for image in sorted(folder.rglob("*.png")):
                archive.write(image, image.relative_to(folder))
    elif kind == "npz":
        images = sorted(folder.rglob("*.png"))
        path = tmp_path / "digits.npz"
        np.savez(
            path,
            images=np.stack([np.asarray(Image.open(io.BytesIO(image.read_bytes()))) for image in images]),
            labels=np.array([int(image.parent.name) for image in images]),
        )
    answer = agent(
        "predict",
        "dataset",
        "--num_file_parts=-1",
        "--dataset_path",
        path,
        "--framework_name=ONNXRuntime",
        "-b",
        "8",
    )
    assert answer.code == 0
    assert answer.figure("top-1") == "1.0000 [0.8389, 1.0000]  (20 of 20 inputs)"
    assert "over 2 full batches" in answer.figure("latency")


def test_corrupt_image_is_counted_reported_and_fails_the_call(agent, tmp_path):
    folder = class_folders(tmp_path / "digits", 12)
    broken = sorted(folder.rglob("*.png"))[3]
    broken.write_bytes(broken.read_bytes()[:40])
    answer = agent("predict", "dataset", "--num_file_parts=-1", "--dataset_path", folder, "-b", "4")
    assert answer.code == 1
    assert answer.figure("top-1") == "1.0000 [0.7412, 1.0000]  (11 of 11 inputs)"
    assert answer.figure("failures") == "1"
    assert "over 2 full batches" in answer.figure("latency")
    assert answer.stderr.splitlines()[-1].startswith("failed inputs: 1; the first: ")
    assert broken.name in answer.stderr
    report = agent("info", "evaluation", "accuracy", "-f", "csv")
    assert [(row["evaluated_inputs"], row["failed_inputs"]) for row in report.rows] == [("11", "1")]


def test_fail_on_error_stops_at_the_corrupt_image_and_publishes_nothing(agent, tmp_path):
    folder = class_folders(tmp_path / "digits", 12)
    broken = sorted(folder.rglob("*.png"), key=lambda path: path.name)[6]
    broken.write_bytes(b"no image")
    arguments = ("--dataset_path", folder, "-b", "4", "--warmup_num_file_parts=0", "--fail_on_error")
    answer = agent("predict", "dataset", "--num_file_parts=-1", *arguments)
    assert answer.code == 1
    last = answer.stderr.splitlines()[-1]
    assert broken.name in last
    assert "cannot be decoded" in last
    assert "after 4 of 12 inputs" in last
    assert agent("info", "evaluation", "latency", "-f", "csv").rows == []


def test_fewer_than_five_classes_do_not_break_top5(agent, tmp_path):
    manifest = (BUILTIN / "models" / "DigitsCNN" / "onnxruntime.yml").read_text()
    weights = BUILTIN / "models" / "DigitsCNN" / "digits_cnn.onnx"
    onnx = pytest.importorskip("onnx")
    model = onnx.load(weights)
    output = model.graph.output[0].name
    first_three = onnx.helper.make_tensor("first", onnx.TensorProto.INT64, [3], [0, 1, 2])
    model.graph.initializer.append(first_three)
    model.graph.node.append(onnx.helper.make_node("Gather", [output, "first"], ["three"], axis=1))
    del model.graph.output[:]
    model.graph.output.append(onnx.helper.make_tensor_value_info("three", onnx.TensorProto.FLOAT, ["n", 3]))
    folder = tmp_path / "manifests"
    folder.mkdir()
    onnx.save(model, folder / "digits_cnn.onnx")
    text = re.sub(r"graph_checksum:.*\n", "\n", manifest).replace("name: DigitsCNN", "name: ThreeDigits", 1)
    text = re.sub(r"labels:.*(\n\s+- .*)*", 'labels: ["0", "1", "2"]', text)
    (folder / "three.yml").write_text(text)
    digits = class_folders(tmp_path / "digits", 60)
    for label in "3456789":
        for image in (digits / label).iterdir():
            image.unlink()
        (digits / label).rmdir()
    count = len(list(digits.rglob("*.png")))
    answer = agent(
        "predict",
        "dataset",
        "--num_file_parts=-1",
        "--manifests",
        folder,
        "--model_name=ThreeDigits",
        "--dataset_path",
        digits,
        "-b",
        "4",
    )
    assert answer.code == 0, answer.stderr
    assert answer.figure("top-1").endswith(f", 1.0000]  ({count} of {count} inputs)")
    assert answer.figure("top-5").endswith(f", 1.0000]  ({count} of {count} inputs)")


def test_predictions_are_published_only_when_asked_for(agent, tmp_path):
    import sqlite3

    few = ("predict", "dataset", "--num_file_parts=1", "-b", "8")

    def count() -> int:
        with sqlite3.connect(tmp_path / "data" / "inferometer.db") as database:
            tables = {
                name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            }
            if "input_prediction" not in tables:
                return 0
            rows = database.execute("SELECT COUNT(*) FROM input_prediction").fetchone()[0]
        database.close()
        return int(rows)

    assert agent(*few).code == 0
    assert count() == 0
    assert agent(*few, "--publish_predictions").code == 0
    assert count() == 8


def test_publish_false_leaves_no_database(agent, tmp_path):
    answer = agent("predict", "dataset", "--publish=false", "--num_file_parts=1")
    assert answer.code == 0
    assert "published" not in answer.stdout
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_stops_the_run_in_order_and_says_what_was_kept(tmp_path, agent, number):
    digits = class_folders(tmp_path / "digits", 450)
    for copy in range(60):
        for image in sorted(digits.rglob("0*.png"))[:40]:
            (image.parent / f"{copy:02d}-{image.name}").write_bytes(image.read_bytes())
    command = [
        sys.executable, "-c", "from inferometer.client.cli.main import main; main()", "predict", "dataset",
        "--num_file_parts=-1",
        "--framework_name=ONNXRuntime", "-b", "1", "--warmup_num_file_parts=0", "--dataset_path", str(digits),
    ]  # fmt: skip
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as run:
        assert run.stdout is not None
        line = run.stdout.readline()
        assert "over" in line
        run.send_signal(number)
        _, stderr = run.communicate(timeout=60)
    assert run.returncode == 130, stderr
    assert "stopping after this batch" in stderr
    kept = re.search(r"interrupted: (\d+) inputs in \1 batches were kept", stderr)
    if kept:
        assert agent("info", "evaluation", "latency", "-f", "csv").rows == []
        rows = agent("info", "evaluation", "latency", "-f", "csv", "--include_interrupted").rows
        assert [(row["measured_batches"], row["status"]) for row in rows] == [(kept[1], "interrupted")]
    else:
        assert "stopped before a batch was measured; nothing was published" in stderr


def test_repeated_workloads_are_a_group(agent):
    load = ("--synthetic", "--initial_qps=100", "--duration=0.3", "--allow_invalid")
    answer = agent("predict", "workload", *load, "--repeat=2")

    assert answer.code == 0, answer.stderr
    assert answer.stdout.count("published") == 2
    rows = agent("info", "evaluation", "workload", "--id", answer.figure("group"), "-f", "csv").rows
    assert len({row["id"] for row in rows}) == 2
