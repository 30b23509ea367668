"""The command that runs an evaluation again gives the options that the evaluation was run with."""

from __future__ import annotations

import shlex
from dataclasses import fields, replace
from typing import Any

import click
import pytest

from inferometer.agent.hardware.environment import Device, DeviceKind, Weights
from inferometer.agent.tracing.recorder import TraceLevel
from inferometer.client.cli.main import cli
from inferometer.evaluators.datasets.base import DatasetIdentity
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.jobs.options import values_of
from inferometer.evaluators.kinds.batches.request import BatchOptions
from inferometer.evaluators.kinds.load.measurement import Scenario
from inferometer.evaluators.kinds.load.request import MaxQpsRequest, WorkloadRequest
from inferometer.evaluators.kinds.registry import again
from tests.evaluations import changed
from tests.page_samples import steady
from tests.reports.loads import calm, closed, searched

SHAPING = tuple(f.name for f in fields(BatchOptions) if f.name != "feature_limit")


def _options(evaluation: Evaluation) -> dict[str, Any]:
    """The options that click reads from the command."""
    command: click.Command = cli
    words = shlex.split(again(evaluation).line)[1:]
    while isinstance(command, click.Group):
        found = command.get_command(click.Context(command), words.pop(0))
        assert found is not None
        command = found
    # click keeps the help option that the first context asks for
    given = command.make_context(
        "agent", words, help_option_names=cli.context_settings["help_option_names"]
    ).params
    if "batch_sizes" in given:
        (given["batch_size"],) = given.pop("batch_sizes")
    return given


@pytest.mark.parametrize(
    "options",
    [
        BatchOptions(16, 16, target_ci_percent=5.0, time_budget_s=30.0),
        BatchOptions(8, 24, num_file_parts=3, warmup_num_file_parts=0, fail_on_error=True),
        BatchOptions(1, 1, num_file_parts=-1),
        BatchOptions(4, 4, min_duration_s=2.5, min_batches=70),
    ],
    ids=["target", "parts", "once", "length"],
)
def test_the_options_of_batches_are_given_again(options: BatchOptions) -> None:
    given = _options(changed(steady(1), options=options))
    parts = given["num_file_parts"]
    found = {
        **{name: given[name] for name in SHAPING},
        "partition_list_size": given["partition_list_size"] or given["batch_size"],
        "num_file_parts": -1 if parts is None else parts,
    }

    assert found == {name: getattr(options, name) for name in SHAPING}
    assert (parts is None) is options.repeats  # what is measured enough by default is not measured again


def test_the_system_and_the_dataset_are_given_again() -> None:
    evaluation = changed(
        steady(1),
        trace_level=TraceLevel.FRAMEWORK_TRACE,
        system=replace(
            steady(1).system, device=Device(DeviceKind.GPU, 1), weights=Weights.RANDOM, seed=7, overlap=False
        ),
        dataset=DatasetIdentity("vision", "/data/my photos; rm -rf", None, None, 5),
    )
    given = _options(evaluation)

    assert (given["gpu"], given["gpu_device_id"], given["weights"], given["seed"]) == (True, 1, "random", 7)
    assert (given["model_name"], given["model_version"], given["framework_name"]) == (
        "DigitsCNN",
        "1.0",
        "PyTorch",
    )
    assert str(given["dataset_path"]) == "/data/my photos; rm -rf"
    assert (given["overlap"], given["trace_level"]) == (False, "FRAMEWORK_TRACE")
    assert "path" in again(evaluation).notes[0]


def test_the_samples_of_a_part_are_given_again() -> None:
    def part(*ids: str) -> Evaluation:
        return changed(steady(1), dataset=DatasetIdentity("vision", "/data", None, None, len(ids), ids))

    assert _options(part("a.png", "b c.png"))["sample_ids"] == "a.png,b c.png"
    for several in (tuple(f"{number}.png" for number in range(500)), ("a,b.png",)):
        repeated = again(part(*several))
        assert "--sample_ids=FILE" in repeated.line
        assert f"the ids of the {len(several)} samples" in repeated.notes[-1]


def test_urls_are_their_own_command() -> None:
    dataset = DatasetIdentity("urls", "list.txt", None, "sha256:0", 5)
    line = again(changed(steady(1), dataset=dataset)).line

    assert "predict urls" in line
    assert "--urls_file_path=list.txt" in line


def test_a_workload_and_a_search_are_requested_again() -> None:
    for evaluation, kind in ((calm(steady(1)), WorkloadRequest), (searched(steady(1)), MaxQpsRequest)):
        names = {field.name for field in fields(kind)} - {"system", "dataset"}
        given = {name: value for name, value in _options(evaluation).items() if name in names}
        request = kind(**(values_of(kind, given) | given))
        kept = evaluation.measurement.options  # type: ignore[attr-defined]
        for name in ("arrival", "rate_qps", "latency_bound_ms", "min_duration_s", "min_queries", "seed"):
            assert getattr(request.load_options(), name) == getattr(kept, name), name


def test_a_closed_loop_and_a_scenario_keep_what_makes_them() -> None:
    loop = closed(steady(1))
    assert f"--concurrency={loop.measurement.options.concurrency}" in again(loop).line  # type: ignore[attr-defined]
    assert "--arrival" not in again(loop).line

    options = replace(calm(steady(1)).measurement.options, scenario=Scenario.OFFLINE)  # type: ignore[attr-defined]
    assert "--scenario=offline" in again(changed(calm(steady(1)), options=options)).line


def test_a_schedule_from_a_file_cannot_be_repeated_and_the_reason_is_told() -> None:
    load = calm(steady(1))
    run = replace(load.measurement.run, seed=None, source="times.csv")  # type: ignore[attr-defined]
    found = again(changed(load, run=run))

    assert found.line == ""
    assert "times.csv" in found.notes[0]


def test_one_process_of_several_says_so() -> None:
    assert "--repeat" in again(replace(steady(1), process=2)).notes[0]
