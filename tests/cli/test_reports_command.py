"""``agent info``: reports on published evaluations, filters, formats and files."""

from __future__ import annotations

import json
import os
import signal

import pytest

from inferometer.client.api import runner
from inferometer.evaluators.store.evaluation_store import write_spool
from inferometer.manifests.errors import StoreError


@pytest.fixture
def published(agent, filled_once):
    """Three evaluations: ONNXRuntime at 1 and 4, PyTorch at 4."""

    def publish():
        for framework, size in (("ONNXRuntime", 1), ("ONNXRuntime", 4), ("PyTorch", 4)):
            few = ("--num_file_parts=3", f"--batch_size={size}")
            assert agent("predict", "dataset", f"--framework_name={framework}", *few).code == 0

    filled_once(publish)


def latency(agent, *arguments):
    answer = agent("info", "evaluation", "latency", "-f", "csv", *arguments)
    assert answer.code == 0, answer.stderr
    return [(row["framework_name"], row["batch_size"]) for row in answer.rows]


def test_filters_choose_evaluations(agent, published):
    everything = [("PyTorch", "4"), ("ONNXRuntime", "4"), ("ONNXRuntime", "1")]
    assert latency(agent) == everything
    assert latency(agent, "--batch_size=4") == everything[:2]
    assert latency(agent, "--framework_name=onnxruntime") == everything[1:]
    assert latency(agent, "--model_name=DIGITSCNN", "--model_version=1.0") == everything
    assert latency(agent, "--limit=1") == everything[:1]
    assert latency(agent, "--arch=ppc64le") == []
    assert latency(agent, "--hostname=elsewhere") == []
    (host,) = {row["hostname"] for row in agent("info", "evaluation", "latency", "-f", "csv").rows}
    assert latency(agent, "--hostname", host) == everything


def test_throughput_is_another_name_for_latency(agent, published):
    one = agent("info", "evaluation", "latency", "-f", "json")
    other = agent("info", "evaluation", "throughput", "-f", "json")
    assert one.stdout == other.stdout


def test_csv_and_json_hold_the_same(agent, published):
    rows = agent("info", "evaluation", "latency", "-f", "csv").rows
    objects = json.loads(agent("info", "evaluation", "latency", "-f", "json").stdout)
    assert [list(row) for row in rows] == [list(item) for item in objects]
    for row, item in zip(rows, objects, strict=True):
        assert float(row["latency_ms_mean"]) == item["latency_ms_mean"]
        assert (row["using_gpu"], item["using_gpu"]) == ("false", False)
        assert (row["latency_ms_p99"], item["latency_ms_p99"]) == ("", None), "of so few batches"


def test_no_rows_are_said_and_valid(agent):
    answer = agent("info", "evaluation", "latency", "-f", "json")
    assert (answer.code, json.loads(answer.stdout)) == (0, [])
    assert answer.error.endswith("matches")
    answer = agent("info", "evaluation", "accuracy", "-f", "csv")
    assert (answer.code, answer.rows) == (0, [])
    assert answer.stdout.startswith("id,created_at,model_name,")


def test_file_is_kept_unless_told_otherwise(agent, published, tmp_path):
    path = tmp_path / "report.csv"
    write = ("info", "evaluation", "latency", "-f", "csv", "--limit=1", "-o", path)
    assert agent(*write).code == 0
    first = path.read_text()
    refused = agent(*write)
    assert refused.code == 7
    assert str(path) in refused.error
    assert path.read_text() == first
    assert agent(*write, "--append").code == 0
    assert len(path.read_text().splitlines()) == 3
    assert agent(*write, "--overwrite").code == 0
    assert path.read_text() == first
    assert agent(*write, "--append", "--overwrite").code == 2


def test_no_header(agent, published):
    with_header = agent("info", "evaluation", "latency", "-f", "csv").stdout.splitlines()
    without = agent("info", "evaluation", "latency", "-f", "csv", "--no_header").stdout.splitlines()
    assert without == with_header[1:]


@pytest.mark.usefixtures("needs_mxnet")
def test_models_frameworks_datasets_and_system_are_listed(agent):
    models = agent("info", "models", "-f", "csv", "--framework_name=mxnet").rows
    assert {(m["framework_name"], m["runnable"]) for m in models} == {("MXNet", "true")}
    assert {"DigitsCNN", "ResNet50"} <= {m["name"] for m in models}
    frameworks = agent("info", "frameworks", "-f", "csv").rows
    assert [f["name"] for f in frameworks] == ["PyTorch", "MXNet", "ONNXRuntime"]
    assert all(f["installed_version"] for f in frameworks)
    assert [d["name"] for d in agent("info", "datasets", "-f", "csv").rows] == [
        "digits_denoising",
        "digits_detection",
        "digits_segmentation",
        "digits_training",
        "digits_validation",
        "ilsvrc2012_validation",
        "statements_validation",
    ]
    facts = {row["name"]: row["value"] for row in agent("info", "system", "-f", "csv").rows}
    assert int(facts["memory_bytes"]) > 0
    assert facts["python_version"].startswith("3.")
    assert agent("info", "system", "-f", "table").code == 0
    assert not [value for value in facts.values() if value.startswith("{")]


def test_evaluation_can_be_imported_from_the_file_it_was_kept_in(agent, tmp_path, monkeypatch):
    from inferometer.evaluators.store.evaluation_store import EvaluationStore
    from inferometer.manifests.errors import StoreError

    def gone(self, evaluation):
        raise StoreError("database gone")

    with monkeypatch.context() as patch:
        patch.setattr(EvaluationStore, "save", gone)
        failed = agent("predict", "dataset", "--num_file_parts=1")
    assert failed.code == 5
    (kept,) = (tmp_path / "data" / "unpublished").iterdir()
    assert f"agent database import {kept}" in failed.stderr.splitlines()[-1]
    assert latency(agent) == []
    assert agent("database", "import", kept).stdout.startswith("published ")
    assert agent("database", "import", kept).stdout.startswith("unchanged ")
    assert len(latency(agent)) == 1


def test_ctrl_c_while_an_evaluation_is_published_loses_nothing(agent, tmp_path, monkeypatch):
    from inferometer.evaluators.store.evaluation_store import EvaluationStore

    def interrupted(self, evaluation):
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("the signal's handler raises")

    with monkeypatch.context() as patch:
        patch.setattr(EvaluationStore, "save", interrupted)
        failed = agent("predict", "dataset", "--num_file_parts=1")
    assert failed.code == 130
    assert "top-1" in failed.stdout
    assert "stopping after" not in failed.stderr
    (kept,) = (tmp_path / "data" / "unpublished").iterdir()
    assert f"not published: the evaluation was kept in {kept}: publish it later" in failed.stderr
    assert agent("database", "import", kept).stdout.startswith("published ")
    assert len(latency(agent)) == 1


def test_ctrl_c_while_an_evaluation_is_kept_in_a_file_loses_nothing(agent, tmp_path, monkeypatch):
    def interrupted(evaluation, folder):
        os.kill(os.getpid(), signal.SIGINT)
        return write_spool(evaluation, folder)

    with monkeypatch.context() as patch:
        patch.setattr(runner, "write_spool", interrupted)
        failed = agent("predict", "dataset", "--num_file_parts=1")
    assert failed.code == 130
    assert "top-1" in failed.stdout
    assert "published" not in failed.stdout
    assert "stopping once the evaluation is in a file (again to stop at once)" in failed.stderr
    (kept,) = (tmp_path / "data" / "unpublished").iterdir()
    assert f"not published: the evaluation was kept in {kept}: publish it later" in failed.stderr
    assert latency(agent) == []
    assert agent("database", "import", kept).stdout.startswith("published ")


def test_ctrl_c_while_an_evaluation_can_be_kept_in_no_file_loses_nothing(agent, monkeypatch):
    def interrupted(evaluation, folder):
        os.kill(os.getpid(), signal.SIGINT)
        raise StoreError("no space left")

    monkeypatch.setattr(runner, "write_spool", interrupted)
    assert "published " in agent("predict", "dataset", "--num_file_parts=1").stdout
    assert len(latency(agent)) == 1


def test_an_evaluation_that_can_be_kept_nowhere_is_shown_with_both_causes(agent, tmp_path, monkeypatch):
    from inferometer.evaluators.store.evaluation_store import EvaluationStore
    from inferometer.manifests.errors import StoreError

    def gone(self, evaluation):
        raise StoreError("database gone")

    monkeypatch.setattr(EvaluationStore, "save", gone)
    (tmp_path / "data").mkdir(exist_ok=True)
    (tmp_path / "data" / "unpublished").touch()
    failed = agent("predict", "dataset", "--num_file_parts=1")
    assert failed.code == 5
    assert "top-1" in failed.stdout
    [line] = [line for line in failed.stderr.splitlines() if "database gone" in line]
    assert "the evaluation is lost, because it could not be kept in a file either" in line
    assert str(tmp_path / "data" / "unpublished") in line


def test_a_published_evaluation_leaves_no_file(agent, tmp_path):
    assert agent("predict", "dataset", "--num_file_parts=1").code == 0
    assert not (tmp_path / "data" / "unpublished").exists()


def test_profile_is_written(agent, tmp_path):
    answer = agent("info", "models", "--profile")
    assert answer.code == 0
    (path,) = (tmp_path / "data" / "profiles").iterdir()
    assert str(path) in answer.error


def test_version(agent):
    assert agent("--version").stdout.startswith("inferometer ")
