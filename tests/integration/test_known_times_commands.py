"""``predict dataset`` on a framework whose predictions take known times, in real time."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from fake_framework import SCRIPT, SERVED, SIDE

from inferometer.client.cli.main import run
from inferometer.evaluators.kinds.batches.measurement import LatencySummary
from inferometer.evaluators.statistics import batches_for_interval, interval_over
from inferometer.evaluators.store.evaluation_store import EvaluationFilter
from inferometer.evaluators.store.opening import open_store
from tests.known_times import BASE_MS

MS = 1_000_000
BATCHES = 200
SCALE = 0.1
CALL_NS = 0.02 * MS
KINDS = ("constant", "exponential", "correlated_0.9", "bimodal", "pauses")


@pytest.fixture
def evaluate(environment, manifest_folder, tmp_path):
    """Evaluates the timed model over 40 inputs of one batch each, and returns what is kept."""
    np.savez(
        tmp_path / "inputs.npz", images=np.zeros((40, SIDE, SIDE), np.uint8), labels=np.zeros(40, np.int64)
    )

    def call(kind, *options, **script):
        text = json.dumps({"kind": kind, "scale": SCALE, "count": 10 * BATCHES, **script})
        (manifest_folder / SCRIPT).write_text(text)
        where = (f"--manifests={manifest_folder}", f"--dataset_path={tmp_path / 'inputs.npz'}")
        model = ("--model_name=Timed", "--framework_name=Fake", "--batch_size=1")
        code = run(["predict", "dataset", *model, *where, *options])
        assert code == 0
        store = open_store(None, "inferometer", Path(os.environ["AGENT_DATA_DIR"]))
        try:
            return list(store.find(EvaluationFilter()))
        finally:
            store.close()

    return call


@pytest.mark.real_time
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_measured_is_what_the_predictions_took(evaluate, manifest_folder, kind):
    """The intervals hold the mean and p50 of the times that the framework took, which no one else knows."""
    [evaluation] = evaluate(kind, f"--min_batches={BATCHES}")

    summary = LatencySummary.of(evaluation.measurement)
    warm_up = 1
    taken_ns = np.asarray(json.loads((manifest_folder / SERVED).read_text())[warm_up:])
    assert summary.measured_batches == len(taken_ns) == BATCHES
    assert np.median(evaluation.measurement.full_ns - taken_ns) < 0.1 * MS
    assert summary.p50_ns == pytest.approx(np.median(taken_ns), rel=0.05)
    if summary.mean_interval_ns is None:  # a disturbance by others is a correlation too
        assert batches_for_interval(evaluation.measurement.full_ns) > BATCHES
        return
    # a measured time begins before the prediction and ends after it: on a quiet machine by more than the
    # half width of an interval of constant times
    assert summary.p50_interval_ns.low <= np.median(taken_ns) + CALL_NS
    assert summary.p50_interval_ns.high >= np.median(taken_ns)
    assert summary.mean_interval_ns.low <= taken_ns.mean() + CALL_NS
    assert summary.mean_interval_ns.high >= taken_ns.mean()


@pytest.mark.real_time
def test_the_interval_over_processes_is_that_of_their_medians(evaluate, capfd):
    group = evaluate("constant", "--repeat=3", "--num_file_parts=20", spread=0.01)

    printed = capfd.readouterr()
    found = re.search(r"^processes +p50 (\S+) \[(\S+), (\S+)\].* ms over 3 processes$", printed.out, re.M)
    assert found, printed
    assert sorted(each.process for each in group) == [1, 2, 3]
    medians_ns = [LatencySummary.of(each.measurement).p50_ns for each in group]
    assert len(set(medians_ns)) == 3
    low, high = interval_over(medians_ns)
    shown = [np.mean(medians_ns), low, high]
    assert [float(text) for text in found.groups()] == pytest.approx([ns / MS for ns in shown], abs=6e-4)
    assert np.median(medians_ns) == pytest.approx(SCALE * BASE_MS * MS, rel=0.1)
