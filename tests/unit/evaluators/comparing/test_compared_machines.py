"""What differs between the machines and the software of two sides, and what says nothing about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from inferometer.agent.hardware.environment import Device, DeviceKind, Precision, unknown_environment
from inferometer.agent.inference.stages import SystemDescription
from inferometer.evaluators.comparing.comparison import Side
from inferometer.manifests.errors import ConfigurationError
from tests.contract.store_fixtures import make_evaluation, make_manifest, make_system

NOTHING: dict[str, Any] = {"libraries": {}, "build": "", "settings": {}}


def system_with(system: SystemDescription | None = None, **facts: Any) -> SystemDescription:
    system = system or make_system()
    return replace(system, environment=replace(system.environment, **facts))


def side(name: str, *systems: SystemDescription) -> Side:
    return Side(name, tuple(make_evaluation(system=system) for system in systems))


def differences(a: SystemDescription, b: SystemDescription) -> Sequence[str]:
    return list(side("A", a).differences(side("B", b)))


@pytest.mark.parametrize(
    ("facts", "line"),
    [
        ({"governor": "powersave"}, "governor: performance (A), powersave (B)"),
        ({"governor": ""}, "governor: performance (A), not known (B)"),
        ({"kernel": "6.2"}, "system: Linux ☃, kernel 6.1 (A), Linux ☃, kernel 6.2 (B)"),
        ({"python_version": "3.12"}, "Python: 3.11 (A), 3.12 (B)"),
        ({"variables": {"OMP_NUM_THREADS": "1"}}, "variable OMP_NUM_THREADS: 2 (A), 1 (B)"),
        ({"variables": {}}, "variable OMP_NUM_THREADS: 2 (A), not set (B)"),
        ({"build": "AVX512"}, "build: AVX2, $where (A), AVX512 (B)"),
        ({"libraries": {"oneDNN": "3.12", "BLAS": "open"}}, "library BLAS: MKL ☃ (A), open (B)"),
        ({"libraries": {"oneDNN": "3.12"}}, "library BLAS: MKL ☃ (A), not told (B)"),
        (
            {"settings": {"TF32 in convolutions": "off", "cuDNN autotuning": "off"}},
            "setting TF32 in convolutions: on (A), off (B)",
        ),
        (
            {"settings": {"TF32 in convolutions": "on", "cuDNN autotuning": "on"}},
            "setting cuDNN autotuning: off (A), on (B)",
        ),
        (NOTHING, "framework details: known (A), not known (B)"),
    ],
)
def test_each_fact_that_differs_is_one_line(facts: dict[str, Any], line: str) -> None:
    assert differences(make_system(), system_with(**facts)) == [line]
    turned = differences(system_with(**facts), make_system())
    assert [text.split(":")[0] for text in turned] == [line.split(":")[0]]


def test_equal_machines_differ_in_nothing() -> None:
    assert differences(make_system(), make_system()) == []
    assert differences(system_with(**NOTHING), system_with(**NOTHING)) == []


def test_threads_are_a_difference_of_their_own() -> None:
    assert differences(make_system(threads=1), make_system(threads=2)) == ["threads: 1 (A), 2 (B)"]
    assert differences(make_system(threads=None), make_system(threads=2)) == ["threads: not known (A), 2 (B)"]


def test_the_precision_is_a_difference_where_both_sides_tell_it() -> None:
    half = make_system(precision=Precision.FLOAT16)
    assert differences(make_system(), half) == ["precision: float32 (A), float16 (B)"]
    assert differences(make_system(precision=None), half) == []


def test_cudnn_benchmark_is_a_difference_where_a_gpu_runs_the_model() -> None:
    gpu = Device(DeviceKind.GPU)
    tuned, default = make_system(device=gpu, cudnn_benchmark=True), make_system(device=gpu)
    assert differences(tuned, default) == ["cudnn_benchmark: true (A), the default (B)"]
    with pytest.raises(ConfigurationError, match="A mixes evaluations with cudnn_benchmark true and false"):
        side("A", tuned, make_system(device=gpu, cudnn_benchmark=False))
    assert differences(make_system(cudnn_benchmark=True), make_system()) == []


def test_the_driver_of_a_gpu_counts_only_where_a_gpu_runs_the_model() -> None:
    gpu = make_system(device=Device(DeviceKind.GPU))
    assert differences(gpu, system_with(gpu, gpu_driver="551")) == ["GPU driver: 550.1 (A), 551 (B)"]
    assert differences(make_system(), system_with(gpu_driver="551")) == []


def test_of_two_frameworks_only_what_both_tell_is_compared() -> None:
    other = system_with(
        make_system(manifest=make_manifest(framework={"name": "ONNXRuntime", "version": "*"})),
        libraries={"BLAS": "MLAS"},
        settings={"execution providers": "CPU", "cuDNN autotuning": "heuristic"},
    )

    lines = differences(make_system(), other)
    assert "library BLAS: MKL ☃ (A), MLAS (B)" in lines
    assert "setting cuDNN autotuning: off (A), heuristic (B)" in lines
    assert not [line for line in lines if "oneDNN" in line or "providers" in line or "TF32" in line]


def test_a_build_differs_by_what_it_has() -> None:
    full, short = (system_with(build=build) for build in ("✔ BLAS, ✔ SSE, ✖ AVX, ✖ CUDA", "BLAS, SSE"))
    other = system_with(build="✔ BLAS, ✔ CUDA, ✖ AVX, ✖ SSE")

    assert differences(full, short) == []
    assert differences(full, other) == ["build: BLAS, SSE (A), BLAS, CUDA (B)"]


def test_of_a_machine_that_is_not_known_nothing_else_is_said() -> None:
    unknown = replace(make_system(), environment=unknown_environment({}, {}))

    assert differences(make_system(), unknown) == ["host: Bench-1 (EPYC, 2 cores) (A), not known (B)"]
    assert differences(unknown, unknown) == []


def test_one_side_may_have_several_machines_and_not_several_settings() -> None:
    other = system_with(
        governor="powersave", variables={}, kernel="7", libraries={"BLAS": "open"}, build="AVX512"
    )
    assert len(side("A", make_system(), other).evaluations) == 2
    assert len(side("A", make_system(), system_with(**NOTHING)).evaluations) == 2

    tf32 = system_with(settings={"TF32 in convolutions": "off", "cuDNN autotuning": "off"})
    with pytest.raises(ConfigurationError, match="A mixes evaluations with setting TF32 in convolutions on"):
        side("A", make_system(), tf32)
    with pytest.raises(ConfigurationError, match="A mixes evaluations with threads 1 and 2"):
        side("A", make_system(threads=1), make_system(threads=2))
