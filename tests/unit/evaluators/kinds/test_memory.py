"""Memory: the line by hand, the search, the limit, the wrong input, and the report."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inferometer.agent.hardware.environment import Device
from inferometer.agent.inference.session import SessionOptions
from inferometer.evaluators.drawing.charts import PointChart
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.jobs.job import SystemRequest
from inferometer.evaluators.kinds.memory.job import available_bytes, memory_job
from inferometer.evaluators.kinds.memory.kind import MemoryKind, MemoryReport
from inferometer.evaluators.kinds.memory.measurement import (
    MIB,
    MemoryMeasurement,
    MemoryRequest,
    data_bytes,
    search_largest,
    together,
)
from inferometer.evaluators.kinds.registry import find_plot, find_report
from inferometer.manifests.errors import ConfigurationError
from tests.evaluations import changed
from tests.memory_points import MEASURED, gpu_point, point
from tests.reports.conftest import on_cpu


@pytest.mark.parametrize(
    ("points", "estimated"),
    [
        pytest.param([(1, 50), (2, 50), (10, 100), (20, 150)], 30, id="flat at first"),
        pytest.param([(4, 80), (1, 50), (2, 60)], 16, id="in another order"),
        pytest.param([(1, 50), (8, 120), (16, 120), (15, 120)], 33, id="flat at the end"),
        pytest.param([(1, 50), (3, 71)], 15, id="rounded down"),
        pytest.param([(1, 210), (2, 220)], 0, id="too large"),
        pytest.param([(4, 10)], None, id="one"),
        pytest.param([(1, 10), (2, 9)], None, id="falling"),
        pytest.param([], None, id="none"),
    ],
)
def test_the_largest_sizes_estimate_the_batch_that_fits(
    points: list[tuple[int, int]], estimated: int | None
) -> None:
    measured = MemoryMeasurement([point(*each) for each in points], 200 * MIB, 1)

    assert measured.estimated(0) == estimated
    assert measured.capacity(0)["estimated_batch"] == estimated


@pytest.mark.parametrize(
    ("estimated", "largest", "tries", "within", "most"),
    [
        pytest.param(1000, 1000, 8, 5, 5, id="right"),
        pytest.param(1000, 1060, 12, 5, 9, id="too small"),
        pytest.param(1000, 700, 12, 3, 12, id="too large"),
        pytest.param(3, 3, 8, 0, 2, id="few"),
        pytest.param(0, 0, 8, 0, 1, id="none fits"),
        pytest.param(40, 0, 12, 0, 12, id="none fits, but is estimated"),
        pytest.param(1000, 5000, 3, None, 3, id="tries used up"),
        pytest.param(1000, 1000, 0, None, 0, id="no tries"),
    ],
)
def test_the_largest_is_found_in_few_tries(
    estimated: int, largest: int, tries: int, within: int | None, most: int
) -> None:
    tried: list[int] = []

    def fits(size: int) -> bool:
        tried.append(size)
        return size <= largest

    search_largest(estimated, fits, tries)

    assert len(tried) <= most
    assert len(set(tried)) == len(tried)
    if within is not None:
        assert largest - max((size for size in tried if size <= largest), default=0) <= within
        assert min(size for size in tried if size > largest) - largest <= within + 1


def test_data_is_what_there_is_and_what_was_freed() -> None:
    assert data_bytes({"VmData": 500, "VmHWM": 350, "VmRSS": 200}) == 650


@pytest.mark.parametrize(
    ("readings", "resident", "peak", "data"),
    [
        pytest.param([(30, 20, 8, 2, 90, 60)], 30, 60, 90, id="one"),
        pytest.param([(30, 20, 8, 2, 90, 60), (26, 15, 10, 1, 80, 26)], 35 + 10 + 2, 47 + 30, 172, id="two"),
        pytest.param([(30, 20, 8, 2, 90, 30), ()], 30, 30, 92, id="one that has ended"),
    ],
)
def test_of_several_processes_files_and_shared_memory_count_once(
    readings: list[tuple[int, ...]], resident: int, peak: int, data: int
) -> None:
    names = ("VmRSS", "RssAnon", "RssFile", "RssShmem", "VmData", "VmHWM")
    found = together([dict(zip(names, each, strict=False)) for each in readings])

    assert (found["VmRSS"], found["VmHWM"], found["VmData"]) == (resident, peak, data)
    assert found["VmRSS"] == found["RssAnon"] + found["RssFile"] + found["RssShmem"]


_FREED = """
import numpy as np
from inferometer.evaluators.kinds.memory.job import read_memory
from inferometer.evaluators.kinds.memory.measurement import MIB, data_bytes
taken = np.ones(96 * MIB, np.uint8)
before = read_memory()
del taken
after, later = read_memory(), read_memory()
print(before["VmHWM"] - after["VmRSS"] >= 90 * MIB)
print(abs(data_bytes(after) / data_bytes(before) - 1) <= 0.02)
print(data_bytes(later) <= data_bytes(after) - 90 * MIB)
"""


def test_a_reading_covers_what_was_freed_and_not_the_stage_before() -> None:
    """In a process of its own, whose memory no other thread changes."""
    done = subprocess.run(
        [sys.executable, "-c", _FREED], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == ["True"] * 3


@pytest.mark.parametrize(
    ("group", "files", "available"),
    [
        ("0::/job", {"job/memory.max": "3000", "job/memory.current": "1000"}, 2000),
        ("0::/job/step", {"job/memory.max": "900", "job/memory.current": "1000"}, 0),
        ("0::/job", {"job/memory.max": "max", "job/memory.current": "1000"}, None),
        (
            "4:memory:/job",
            {"memory/job/memory.limit_in_bytes": "700", "memory/job/memory.usage_in_bytes": "300"},
            400,
        ),
        ("0::/gone", {}, None),
    ],
)
def test_a_control_group_bounds_what_is_available(
    group: str, files: dict[str, str], available: int | None, tmp_path: Path
) -> None:
    for name, text in {
        "proc/self/cgroup": f"{group}\n",
        **{f"sys/fs/cgroup/{n}": t for n, t in files.items()},
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="ascii")

    found = available_bytes(tmp_path / "proc", tmp_path / "sys")

    assert found == available if available is not None else found > MIB


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"batch_sizes": (4, 0)}, "batch_sizes is 0; it must be at least 1"),
        ({"sequence_lengths": (-1,)}, "sequence_lengths is -1; it must be at least 1"),
        ({"memory_limit_mib": 0}, "memory_limit is 0; it must be at least 1"),
        ({"batch_sizes": (1, "a")}, "batch_sizes is 'a'; it must be a whole number"),
        ({"tries": -1}, "tries is -1; it must be at least 0"),
        ({"predictions": 1.5}, "predictions is 1.5; it must be a whole number"),
        (
            {"system": SystemRequest(agents=("h:1",)), "instances": "auto"},
            "applies only to a model in this p",
        ),
        ({"instances": 0}, "instances is 0; it must be at least 1 and at most 64"),
        ({"instances": "many"}, "instances is 'many'; it must be a whole number"),
        ({"system": SystemRequest(agents=("h:1",))}, "give one, and no agent"),
        (
            {"system": SystemRequest(session=SessionOptions(device=Device.gpus("0,1"))), "instances": 2},
            "give one, and no agent",
        ),
    ],
)
def test_wrong_input_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        memory_job(MemoryRequest(**given))


def test_auto_is_the_number_of_instances_that_fit_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inferometer.agent.inference.session.usable_cores", lambda: 6)
    session = SessionOptions(threads=2)

    assert MemoryRequest(system=SystemRequest(session=session), instances="auto").instances == 3


@pytest.fixture
def evaluation() -> Evaluation[Any]:
    return changed(on_cpu(), measurement=MEASURED)


def test_the_figures_of_a_row_are_differences_of_its_readings(evaluation: Evaluation[Any]) -> None:
    first, second, *tried = MemoryReport().rows([evaluation])

    assert set(first) == {column.key for column in MemoryReport.columns}
    # 10 MiB of Python, 20 of framework, 30 of model with a peak of 35, and 40 a batch of 4
    assert [first[key] for key in ("framework_mib", "model_mib", "batch_mib", "peak_mib")] == [20, 30, 40, 90]
    assert [first[key] for key in ("load_peak_mib", "anonymous_mib", "file_mib")] == [65, 70, 30]
    assert [first["data_mib"], second["data_mib"]] == [240, 280]
    assert first["outcome"] == "measured"
    assert [(row["batch_size"], row["outcome"]) for row in tried] == [(20, "fits"), (21, "does not fit")]
    assert tried[1]["failure"] == "the process ended by SIGKILL"
    assert tried[1]["peak_mib"] is None


def test_the_largest_batch_is_estimated_from_the_line_and_known_from_the_tries(
    evaluation: Evaluation[Any],
) -> None:
    found = MEASURED.capacity(0)

    assert found["estimated_batch"] == 20  # 200 MiB, and 10 for each input, of 400
    assert found["largest_batch"] == 20
    assert found["error_percent"] == 0.0
    assert MemoryKind().measured(MEASURED) == "4 processes"
    shown = MemoryKind().document(evaluation, evaluation, lambda _: iter(()))["memory"]
    assert [row["batch_size"] for row in shown] == [4, 8, 20, 21]
    assert dict(MemoryKind().facts(evaluation, evaluation)) == {
        "limit": "400 MiB of data",
        "largest batch": "20; estimated 20, +0.0 % off",
    }


@pytest.mark.parametrize(
    ("process", "outside"),
    [pytest.param(None, 500, id="the whole card's"), pytest.param(900, 900 - 260, id="the process's")],
)
def test_the_figures_on_a_gpu_are_those_of_its_memory(
    process: int | None, outside: int, evaluation: Evaluation[Any]
) -> None:
    measured = MemoryMeasurement([gpu_point(4, process), gpu_point(8, process)], 3000 * MIB, 1)
    on_gpu = changed(evaluation, measurement=measured)
    first, second = MemoryReport().rows([on_gpu])

    keys = ("framework_mib", "model_mib", "batch_mib", "peak_mib", "load_peak_mib", "data_mib")
    # 100 MiB of model with a peak of 110, and 10 for each input; 300 are reserved for 4, and 260 are kept
    assert [first[key] for key in keys] == [outside, 100, 40, outside + 140, outside + 110, outside + 300]
    assert (first["memory_of"], first["process_peak_mib"], first["file_mib"]) == ("device", 90, None)
    assert second["peak_mib"] == outside + 180
    assert measured.outside_bytes == outside * MIB
    assert measured.capacity(0)["estimated_batch"] == (3000 - outside - 252) // 12
    told = dict(MemoryKind().summary(on_gpu))
    assert told["limit"] == "3,000 MiB of GPU memory"
    assert ("framework" in told) == (process is None)
    drawing = find_plot(find_report("memory")).draw([on_gpu], [first, second])
    assert drawing is not None
    assert drawing.charts[0].series[1].y == (outside + 300, outside + 348)
    with pytest.raises(ValueError, match="lacks a reading"):
        MemoryMeasurement([gpu_point(4, process), point(8, 40)], MIB, 1)


def test_the_models_error_is_the_change_by_its_largest_size(evaluation: Evaluation[Any]) -> None:
    measured = MemoryMeasurement([point(16, 380), point(4, 240), point(8, 280)], 400 * MIB, 1)

    found = measured.capacity(0)
    assert (found["estimated_batch"], measured.estimated(0, left_out=1)) == (17, 20)
    assert found["model_error_percent"] == pytest.approx(100 * 3 / 17)
    shown = dict(MemoryKind().summary(changed(evaluation, measurement=measured)))
    assert shown["largest batch"] == "not known; estimated 17 (+17.6 % without the largest size)"
    assert MEASURED.capacity(0)["model_error_percent"] is None  # of two sizes
    nothing_fits = replace(measured, limit_bytes=1)
    assert nothing_fits.capacity(0)["model_error_percent"] is None  # of an estimate of 0


def test_a_model_that_does_not_fit_at_all_has_a_largest_batch_of_0() -> None:
    points: Any = [*MEASURED.points[:2], {**MEASURED.points[-1], "batch_size": 1}]

    assert MemoryMeasurement(points, 10 * MIB, 1).capacity(0)["largest_batch"] == 0


def test_the_measurement_is_the_same_after_storing(evaluation: Evaluation[Any]) -> None:
    document, parts = MemoryKind().to_documents(evaluation, "x")

    restored = MemoryKind().from_documents({"measurement": document, "elapsed_ns": 5}, parts)

    assert [dict(each) for each in restored.points] == [dict(each) for each in MEASURED.points]
    assert restored.capacity(0) == MEASURED.capacity(0)
    assert restored.options == {"memory_limit_mib": 400, "batch_sizes": [4, 8]}


def test_the_command_that_repeats_it_has_lists_with_commas(evaluation: Evaluation[Any]) -> None:
    line = MemoryKind().again(evaluation).line

    assert line.startswith("agent measure memory --model_name=DigitsCNN")
    assert line.endswith("--batch_sizes=4,8 --memory_limit=400")


def test_the_picture_has_the_points_the_line_and_the_limit(evaluation: Evaluation[Any]) -> None:
    drawing = find_plot(find_report("memory")).draw([evaluation], list(MemoryReport().rows([evaluation])))

    assert drawing is not None
    [chart] = drawing.charts
    assert isinstance(chart, PointChart)
    assert [rule.at for rule in chart.rules] == [400]
    line, measured, fits = chart.series
    assert (measured.x, measured.y) == ((4, 8), (240, 280))
    assert (fits.x, fits.y) == ((20,), (398,))
    assert (line.x, line.y) == ((4, 20), pytest.approx((240, 400)))
