"""The example script of MLModelScope's MXNet ResNet50 page, without ``docker run`` and with DigitsCNN."""

from __future__ import annotations

import shlex
import string
from pathlib import Path

import pytest

from tests.contract.store_fixtures import NxServer

VARIABLES = {
    "DATABASE_NAME": "ResNet50_model_trace",
    "MODEL_NAME": "DigitsCNN",
    "MODEL_VERSION": "1.0",
    "NUM_FILE_PARTS": "10",
    "BATCH_SIZE": "1",
    "TRACE_LEVEL": "MODEL_TRACE",
    "TRACER_ADDRESS": "localhost",
}
PREDICT = r"""
predict dataset \
      --fail_on_error=true \
      --verbose \
      --publish=true \
      --publish_predictions=false \
      --gpu=false \
      --num_file_parts=$NUM_FILE_PARTS \
      --batch_size=$BATCH_SIZE \
      --model_name=$MODEL_NAME \
      --model_version=$MODEL_VERSION \
      --database_name=$DATABASE_NAME \
      --database_address=$DATABASE_ADDRESS \
      --trace_level=$TRACE_LEVEL \
      --tracer_address=$TRACER_ADDRESS
"""
LATENCY = r"""
info evaluation latency \
      --batch_size=$BATCH_SIZE \
      --model_name=$MODEL_NAME \
      --model_version=$MODEL_VERSION \
      --database_name=$DATABASE_NAME \
      --database_address=$DATABASE_ADDRESS
"""
ACCURACY = LATENCY.replace("latency", "accuracy")


@pytest.fixture
def database(tmp_path: Path):
    server = NxServer(tmp_path)
    yield server.address
    server.stop()


def words(script: str, database: str, **changes: str) -> list[str]:
    variables = VARIABLES | {"DATABASE_ADDRESS": database} | changes
    return shlex.split(string.Template(script.replace("\\\n", " ")).substitute(variables))


@pytest.mark.parametrize("framework", ["MXNet", "ONNXRuntime"])
def test_performance_then_report(agent, database, monkeypatch, framework):
    monkeypatch.setenv("AGENT_FRAMEWORK", framework)
    measured = agent(*words(PREDICT, database))
    assert measured.code == 0, measured.stderr
    assert "of 10 inputs" in measured.figure("top-1")
    latency = agent(*words(LATENCY, database), "-f", "csv")
    (row,) = latency.rows
    assert row["id"] == measured.figure("evaluation")
    assert (row["framework_name"], row["batch_size"], row["measured_batches"]) == (framework, "1", "10")
    assert row["trace_level"] == "MODEL_TRACE"
    (row,) = agent(*words(ACCURACY, database), "-f", "csv").rows
    assert (row["evaluated_inputs"], row["failed_inputs"]) == ("10", "0")


def test_accuracy_run_over_the_whole_dataset(agent, database):
    assert agent(*words(PREDICT, database, NUM_FILE_PARTS="-1", BATCH_SIZE="50")).code == 0
    (row,) = agent(*words(ACCURACY, database, BATCH_SIZE="50"), "-f", "csv").rows
    assert row["evaluated_inputs"] == "450"
    assert float(row["top1_accuracy"]) >= 0.97
    assert agent(*words(ACCURACY, database, BATCH_SIZE="49"), "-f", "csv").rows == []


@pytest.mark.parametrize(
    "command", [["predict", "-h"], ["predict", "dataset", "-h"], ["info", "evaluation", "-h"], ["-h"]]
)
def test_help_is_there(agent, command):
    answer = agent(*command)
    assert answer.code == 0
    assert answer.stdout.startswith("Usage: agent")
    for flag in ("--config", "-d, --debug", "-l, --local", "--profile", "-s, --secret", "-v, --verbose"):
        assert flag in answer.stdout
