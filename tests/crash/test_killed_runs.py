"""Runs that are killed at any moment: what was announced is kept, and nothing half-written is shown.

The suite kills a few; ``make crash`` kills 200 and prints its seed.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from inferometer.evaluators.kinds.batches.measurement import BatchMeasurement
from inferometer.evaluators.store.evaluation_store import EvaluationFilter, evaluation_to_json, read_spool
from inferometer.evaluators.store.opening import open_store
from inferometer.manifests.errors import StoreError
from tests.contract.store_fixtures import mongodb_backend

RUNS = int(os.environ.get("INFEROMETER_CRASH_RUNS", "12"))
SEED = int(os.environ.get("INFEROMETER_CRASH_SEED", "0"))
DEADLINE_S = 60
INPUTS = 20
_RUN = "from inferometer.client.cli.main import main; main()"
_SAVES = """
import sys, uuid
from dataclasses import replace
from pathlib import Path
from inferometer.evaluators.store.evaluation_store import read_spool
from inferometer.evaluators.store.opening import open_store
spool, address, name, folder = sys.argv[1:]
evaluation = read_spool(Path(spool))
store = open_store(address or None, name, Path(folder))
for number in range(10**6):
    one = replace(evaluation, id=str(uuid.uuid4()))
    store.save(one)
    print(f"published   {one.id}", flush=True)
"""


@pytest.fixture(scope="module", params=["sqlite", "mongodb"])
def address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a database; empty for the local file."""
    if request.param == "sqlite":
        yield ""
    else:
        with mongodb_backend(tmp_path_factory.mktemp("mongodb")) as mongodb:
            yield mongodb.address or ""


@contextmanager
def running(
    command: list[str], environment: dict[str, str], output: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a command with its output in a file, and kills it in the end."""
    with output.open("wb") as stdout:
        process = subprocess.Popen(command, env=environment, stdout=stdout, stderr=subprocess.DEVNULL)
        try:
            yield process
        finally:
            process.kill()
            process.wait(DEADLINE_S)


def check(address: str, name: str, folder: Path, announced: set[str]) -> None:
    """Holds what is kept against what was announced."""

    def fail(error: StoreError) -> None:
        raise AssertionError(f"an evaluation is shown and cannot be read: {error}")

    store = open_store(address or None, name, folder)
    try:
        kept = store.find(EvaluationFilter(limit=None, include_interrupted=True), fail)
    finally:
        store.close()
    for evaluation in kept:
        assert isinstance(evaluation.measurement, BatchMeasurement)
        assert evaluation.measurement.predicted_inputs == INPUTS
    for path in (folder / "unpublished").glob("*.json"):
        assert read_spool(path).measurement.elapsed_ns > 0
    assert announced <= {evaluation.id for evaluation in kept}


def test_what_is_announced_is_kept_and_nothing_half_is_shown(address: str, tmp_path: Path) -> None:
    draw = random.Random(SEED)
    name = f"crash_{uuid.uuid4().hex}"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "AGENT_DATA_DIR": str(tmp_path)}
    run = [
        *(
            sys.executable,
            "-c",
            _RUN,
            "predict",
            "dataset",
            "--num_file_parts=-1",
            "--framework_name=ONNXRuntime",
        ),
        *(
            "--batch_size=1",
            "--partition_list_size=1",
            f"--num_file_parts={INPUTS}",
            f"--database_name={name}",
        ),
        *([f"--database_address={address}"] if address else []),
    ]
    output, spool = tmp_path / "output", tmp_path / "evaluation.json"
    began_s = time.monotonic()
    subprocess.run(run, env=environment, check=True, capture_output=True, timeout=DEADLINE_S)
    whole_s = time.monotonic() - began_s
    store = open_store(address or None, name, tmp_path)
    [first] = store.find(EvaluationFilter())
    store.close()
    spool.write_text(evaluation_to_json(first), "utf-8")
    saves = [sys.executable, "-c", _SAVES, str(spool), address, name, str(tmp_path)]

    announced = {first.id}
    for number in range(RUNS // 2):
        if number % 2:
            with running(run, environment, output) as process, suppress(subprocess.TimeoutExpired):
                process.wait(whole_s * draw.choice([draw.uniform(0, 1.2), draw.uniform(0.7, 1.1)]))
        else:
            with running(saves, environment, output):
                wait_for(lambda: output.stat().st_size)
                time.sleep(draw.uniform(0, 0.1))
        announced |= set(re.findall(r"^published +(\S+).*\n", output.read_text("utf-8"), re.MULTILINE))
        check(address, name, tmp_path, announced)
    assert len(announced) > 1


def wait_for(condition: Callable[[], object]) -> None:
    """Waits until a condition holds."""
    end_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.005)
