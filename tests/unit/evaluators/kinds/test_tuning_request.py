"""The request to tune a model: its space, its options, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inferometer.agent.hardware.environment import Device, DeviceKind, Precision
from inferometer.agent.inference.session import SessionOptions
from inferometer.evaluators.jobs.job import SystemRequest
from inferometer.evaluators.jobs.options import words
from inferometer.evaluators.kinds.tuning.request import Configuration, TuningRequest
from inferometer.manifests.errors import ConfigurationError


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"instances": (0,)}, "instances is 0; it must be at least 1 and at most 64"),
        ({"threads": (1, 2000)}, "threads is 2000; it must be at least 1 and at most 1024"),
        ({"threads": [1, 2.5]}, "threads is 2.5; it must be a whole number"),
        ({"max_batch_size": 4}, "max_batch_size is 4; it must be a list"),
        ({"max_batch_size": ()}, r"max_batch_size is \[\]; give each value once, at least one"),
        ({"max_batch_size": (4, 4)}, r"max_batch_size is \[4, 4\]; give each value once"),
        ({"max_batch_size": ("many",)}, "max_batch_size is 'many'; it must be a whole number"),
        ({"max_queue_delay_ms": (-1.0,)}, "max_queue_delay_ms is -1.0; it must be at least 0 and at most"),
        ({"rate_qps": 0.0}, "rate_qps is 0.0; it must be above 0"),
        ({"latency_bound_ms": 0.0}, "latency_bound_ms is 0.0; it must be at least 0.001"),
        ({"arrival": "ramp"}, "arrival ramp has no steady rate"),
        ({"arrival": "posson"}, 'unknown arrival process "posson"'),
        ({"time_budget_s": 2.0}, "time_budget is 2 s; with this min_duration"),
        ({"system": SystemRequest(agents=("host:1", "host:2"))}, "2 agents are named"),
        ({"dtype": ()}, r"dtype is \[\]; give each value once, at least one"),
        ({"dtype": ("float", "float32")}, r"dtype is \['float32', 'float32'\]; give each value once"),
        ({"dtype": ("float32", "int8")}, 'unknown precision "int8"; give one of float32, float16, bfloat16'),
        (
            {"dtype": ("float32", "float16"), "system": SystemRequest(agents=("host:1",))},
            "dtype is float32,float16; an agent serves the model in one precision: give a single dtype",
        ),
    ],
)
def test_wrong_input_is_refused_in_one_line(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as error:
        TuningRequest(**given)

    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "expected"), [("0,1.5,4", (0.0, 1.5, 4.0)), ("8", (8.0,)), ("1,x", None), ("", None)]
)
def test_delays_are_read_from_text(text: str, expected: tuple[float, ...] | None) -> None:
    read = TuningRequest.__dataclass_fields__["max_queue_delay_ms"].metadata["declared"].made

    if expected is None:
        with pytest.raises(ConfigurationError, match="give numbers, separated by commas"):
            read(text)
    else:
        assert read(text) == expected


@pytest.mark.parametrize(
    ("given", "cores", "expected"),
    [
        ({}, 1, {(1, 1)}),
        ({}, 4, {(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (4, 1)}),
        ({}, 6, {(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (4, 1)}),
        ({"threads": (1,)}, 4, {(1, 1), (2, 1), (4, 1)}),
        ({"instances": (2,)}, 4, {(2, 1), (2, 2)}),
        ({"instances": (8,)}, 2, {(8, 1)}),
        ({"instances": (2, 8), "threads": (4,)}, 2, {(2, 4), (8, 4)}),
    ],
)
def test_what_is_left_open_fits_the_cores(
    given: dict[str, Any], cores: int, expected: set[tuple[int, int]]
) -> None:
    request = TuningRequest(max_batch_size=(1, 8), **given)

    found = list(request.configurations(cores, on_gpu=False))

    assert {(each.instances, each.threads) for each in found} == expected
    assert len(found) == 2 * len(expected)


def test_on_a_gpu_the_framework_keeps_its_threads() -> None:
    session = SessionOptions(device=Device(DeviceKind.GPU, 0))
    request = TuningRequest(system=SystemRequest(session=session), max_batch_size=(4,), instances=(1, 2))

    found = list(request.configurations(8, on_gpu=True))

    assert found == [Configuration(1, None, 4, 0.0), Configuration(2, None, 4, 0.0)]
    assert request.load.system.session.threads is None
    assert str(found[0]) == "instances 1, threads default, batch 4, delay 0 ms"


@pytest.mark.parametrize("given", [("float", "BFloat16"), (Precision.FLOAT32, Precision.BFLOAT16)])
def test_each_precision_is_a_part_of_the_space(given: tuple[str, ...]) -> None:
    session = SessionOptions(precision=Precision.FLOAT16, threads=7)
    system = SystemRequest(session=session)
    request = TuningRequest(system=system, dtype=given, max_batch_size=(1, 8), instances=(1,), threads=(2,))

    found = list(request.configurations(4, on_gpu=False))

    assert [(each.precision, each.max_batch_size) for each in found] == [
        (name, size) for name in ("float32", "bfloat16") for size in (1, 8)
    ]
    assert str(found[-1]) == "instances 1, threads 2, batch 8, delay 0 ms, bfloat16"
    assert request.asked["dtype"] == ("float32", "bfloat16")
    assert request.load.system.session == replace(session, precision=Precision.FLOAT32, threads=2)
    assert request.system_in("bfloat16").session.precision is Precision.BFLOAT16
    assert TuningRequest(system=system).load.system.session.precision is Precision.FLOAT16


def test_an_agent_serves_in_one_precision() -> None:
    request = TuningRequest(system=SystemRequest(agents=("host:1",)), dtype=("bfloat16",))

    assert request.load.system.session.precision is Precision.BFLOAT16


def test_a_space_that_is_too_large_is_refused() -> None:
    request = TuningRequest(max_batch_size=tuple(range(1, 600)), max_queue_delay_ms=(0.0, 1.0))

    with pytest.raises(ConfigurationError, match="the space has 1,198 configurations; at most 1,000"):
        list(request.configurations(1, on_gpu=False))


def test_the_options_of_the_load_and_those_that_are_kept() -> None:
    given: dict[str, Any] = {
        "max_batch_size": (1, 4),
        "latency_bound_ms": 20.0,
        "rate_qps": 50.0,
        "dataset_path": Path("inputs"),
        "write_config": Path("found.yml"),
    }
    request = TuningRequest(**given)

    assert (request.load.latency_bound_ms, request.load.rate_qps) == (20.0, 50.0)
    assert request.load.dataset.path == Path("inputs")
    assert request.asked == {
        "max_batch_size": (1, 4),
        "latency_bound_ms": 20.0,
        "rate_qps": 50.0,
        "dataset_path": "inputs",
    }
    assert list(words({"max_batch_size": [1, 4], "rate_qps": 50.0, "gone": 1}, TuningRequest)) == [
        "--max_batch_size=1,4",
        "--rate=50",
    ]
