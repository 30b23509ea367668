"""Statistics of a server on the clock of a run: what is read, when it was, and what goes wrong."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from inferometer.evaluators.load import server_statistics
from inferometer.evaluators.load.server_statistics import (
    ReadStatistics,
    ServerReader,
    ServerSeries,
    page_sources,
    read_page,
)
from inferometer.manifests.errors import AgentError

DEADLINE_S = 30.0
S = 1_000_000_000
PAGES = Path(__file__).parents[3] / "data" / "metrics"
"""Pages as real servers printed them under load, shortened."""
TRITON, VLLM, KSERVE = (
    (PAGES / f"{name}.txt").read_text(encoding="utf-8")
    for name in ("triton_2.51.0", "vllm_0.32.0", "kserve_0.21.0")
)
SEVERAL = """
nv_gpu_utilization{gpu_uuid="GPU-1"} 0.5
nv_gpu_utilization{gpu_uuid="GPU-2"} 1
nv_gpu_memory_used_bytes{gpu_uuid="GPU-1"} 1000
nv_gpu_memory_used_bytes{gpu_uuid="GPU-2"} 500
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.125
vllm:kv_cache_usage_perc{engine="1",model_name="tiny"} 0.375
vllm:num_requests_running{engine="0",model_name="tiny"} 3.0
vllm:num_requests_running{engine="1",model_name="tiny"} 4.0
vllm:prefix_cache_queries_total{engine="0",model_name="tiny"} 600.0
vllm:prefix_cache_queries_created{engine="0",model_name="tiny"} 1.7e+09
vllm:prefix_cache_hits_total{engine="0",model_name="tiny"} 150.0
"""
OURS = """
inferometer_queue_requests{model="Mean"} 2.0
inferometer_requests_in_flight{method="inferometer.v1.PredictService/Predict"} 3.0
inferometer_requests_in_flight{method="inferometer.v1.PredictService/Hold"} 1.0
inferometer_requests_in_flight{method="inference.GRPCInferenceService/ModelInfer"} 1.0
inferometer_batch_inputs_bucket{le="1.0",model="Mean"} 4.0
inferometer_batch_inputs_count{model="Mean"} 4.0
inferometer_batch_inputs_sum{model="Mean"} 12.0
"""


@pytest.mark.parametrize(
    ("page", "model", "figures"),
    [
        (
            TRITON,
            "DigitsCNN",
            {"requests": 1623, "inferences": 1623, "executions": 874, "success_ns": 31_358_225_000}
            | {"queue_ns": 25_781_992_000, "input_ns": 83_214_000, "infer_ns": 5_110_596_000}
            | {"output_ns": 365_759_000, "queue_length": 8}
            | {"host_cpu_use": 1, "host_memory_bytes": 3_202_396_160},
        ),
        (
            VLLM,
            "tiny",
            {"in_flight": 2, "queue_length": 2, "cache_use": 0.0019540791402051783, "requests": 3}
            | {"success_ns": 1_118_161_678.314209, "queue_ns": 57_506.99347117916}
            | {"infer_ns": 1_084_398_919.0034335, "cpu_ns": 6.12e9, "memory_bytes": 660_549_632},
        ),
        (
            KSERVE,
            "DigitsCNN",
            {"requests": 851, "input_ns": 5_630_217.012367211, "infer_ns": 3_295_259_771.8613105}
            | {"output_ns": 4_917_895.872495137, "cpu_ns": 1.48e9, "memory_bytes": 139_337_728},
        ),
        (OURS, "Mean", {"queue_length": 2, "in_flight": 4, "executions": 4, "inferences": 12}),
        (
            SEVERAL,
            "tiny",
            {"gpu_use": 0.75, "gpu_memory_bytes": 1500, "cache_use": 0.25, "in_flight": 7}
            | {"prefix_tokens": 600, "prefix_hits": 150},
        ),
    ],
    ids=["Triton", "vLLM", "KServe", "ours", "several"],
)
def test_a_page_gives_the_figures_of_the_model(page: str, model: str, figures: dict[str, float]) -> None:
    assert read_page(page, model) == pytest.approx(figures)
    assert read_page(page.replace("\n", "\r\n"), model) == pytest.approx(figures)


def test_a_page_that_does_not_know_the_model_gives_all_of_it() -> None:
    assert read_page(TRITON, "a name of ours")["requests"] == 1623 + 7


@pytest.mark.parametrize(
    "line",
    [
        "",
        "nv_inference_count_of_something_else 3",
        'nv_inference_count{model="a 3',
        "nv_inference_count",
        "nv_inference_count 1.2.3",
        "nv_inference_count NaN",
        "vllm:num_requests_waiting +Inf",
        "# nv_inference_count 3",
        "\x00\xff",
    ],
)
def test_what_is_no_finite_sample_of_a_known_metric_is_left_out(line: str) -> None:
    assert read_page(line) == {}


def test_labels_may_hold_braces_quotes_and_a_time_may_follow() -> None:
    text = 'nv_inference_count{note="}\\" 9",model="a\\"b"} 4 1700000000000'
    assert read_page(text, 'a\\"b') == {"inferences": 4}


def test_pages_are_named_after_their_urls() -> None:
    names = [name for name, _ in page_sources(" http://a:1/m, http://b:2/metrics,", "x")]
    assert names == ["metrics at http://a:1/m", "metrics at http://b:2/metrics"]


def series(**figures: list[float]) -> ServerSeries:
    count = len(next(iter(figures.values())))
    at_ns = np.arange(count) * S
    return ServerSeries(
        "V2", at_ns, np.full(count, 5), {name: np.array(each, np.float64) for name, each in figures.items()}
    )


def test_levels_follow_from_the_growth_of_counters() -> None:
    found = series(
        queue_ns=[0, 2e9, 2e9], success_ns=[0, 3e9, 3e9], inferences=[0, 8, 8], executions=[0, 2, 2]
    )

    assert [found.level(name)[1].tolist() for name in ("queue_length", "in_flight")] == [[2, 0], [3, 0]]
    assert found.level("queue_length")[0].tolist() == [0.5 * S, 1.5 * S]
    assert found.level("batch_size")[1].tolist() == [4], "no batch ran in the second interval"
    assert found.level("memory_bytes")[1].tolist() == []


def test_a_level_that_was_read_goes_before_one_that_is_derived() -> None:
    found = series(queue_ns=[0, 2e9, 2e9], queue_length=[7, np.nan, 9])

    at_ns, values = found.level("queue_length")

    assert (at_ns.tolist(), values.tolist()) == ([0, 2 * S], [7, 9])


def test_the_interval_in_which_a_counter_fell_is_unknown() -> None:
    found = series(requests=[5, 9, 1, 4], infer_ns=[50, 90, 100, 130])

    assert found.was_reset.tolist() == [False, True, False]
    assert np.isnan(found.growth("infer_ns")).tolist() == [False, True, False]
    assert np.nansum(found.growth("requests")) == 7


class Clock:
    """A clock that a source advances."""

    def __init__(self) -> None:
        self.now_ns = 1000

    def __call__(self) -> int:
        return self.now_ns


def read_once(read: ReadStatistics, clock: Clock) -> ServerSeries:
    reader = ServerReader({"V2": read}, 1e-6, clock)
    with reader:
        pass
    [found] = reader.series(began_ns=400)
    return found


def test_a_reading_is_of_the_middle_of_its_round_trip_which_bounds_its_error() -> None:
    """The server is read somewhere within each round trip, late or soon: never further off than told."""
    clock, taken_ns = Clock(), []
    trips = itertools.cycle([(10, 90), (700, 1), (0, 0), (1, 4)])

    def read(_: float) -> dict[str, float]:
        there_ns, back_ns = next(trips)
        clock.now_ns += there_ns
        taken_ns.append(clock.now_ns - 400)
        clock.now_ns += back_ns
        return {"requests": 1.0}

    for _ in range(4):
        began_ns = clock.now_ns
        found = read_once(read, clock)
        assert (np.abs(found.at_ns - taken_ns[-len(found.at_ns) :]) <= found.bound_ns).all()
        assert (
            0 <= 2 * found.bound_ns.sum() - (clock.now_ns - began_ns) <= len(found.at_ns)
        )  # no more than half
    assert len(taken_ns) >= 4


def test_it_is_read_before_the_run_and_once_more_after_it_and_then_no_more() -> None:
    count = itertools.count(1)
    found = read_once(lambda _: {"requests": float(next(count))}, Clock())

    assert found.figures["requests"].tolist() == [1.0, 2.0]
    assert next(count) == 3


def test_a_run_begins_when_every_source_has_been_read() -> None:
    read: list[str] = []

    def reads(name: str) -> ReadStatistics:
        return lambda _: read.append(name) or {"requests": 1.0}

    with ServerReader({name: reads(name) for name in ("V2", "status", "metrics")}, 1e-6):
        assert sorted(read) == ["V2", "metrics", "status"]


@pytest.fixture
def finished() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_a_source_that_hangs_delays_the_end_by_its_timeout_only(
    finished: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_statistics, "READ_TIMEOUT_S", 0.01)

    def hangs(timeout_s: float) -> dict[str, float]:
        assert timeout_s == 0.01
        finished.wait(DEADLINE_S)
        raise AgentError("agent a:1: did not answer in time")

    reader = ServerReader({"V2": hangs, "status": lambda _: {"queue_length": 1.0}}, 100)
    with reader:
        pass

    hung, other = reader.series(0)
    assert len(hung.at_ns) == 0
    assert len(other.at_ns) >= 1


def test_an_interrupted_run_waits_for_no_source(finished: threading.Event) -> None:
    calls, hanging = itertools.count(), threading.Event()

    def hangs_in_the_run(_: float) -> dict[str, float]:
        if next(calls):
            hanging.set()
            finished.wait(DEADLINE_S)
            raise ValueError("Cannot invoke RPC on closed channel!")
        return {"requests": 1.0}

    def interrupted() -> None:
        with ServerReader({"V2": hangs_in_the_run}, 10_000):
            assert hanging.wait(DEADLINE_S)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()

    assert not finished.is_set()
    assert "read-statistics" in {each.name for each in threading.enumerate()}, "it still hangs"


def test_a_source_that_fails_is_told_once_and_not_read_after_three_failures() -> None:
    calls = itertools.count(1)
    done = threading.Event()

    def fails(_: float) -> dict[str, float]:
        if (number := next(calls)) == 3:
            done.set()
        raise AgentError(f"failure\n{number}")

    reader = ServerReader({"V2": fails}, 1000)
    with reader:
        assert done.wait(DEADLINE_S)
    [found] = reader.series(0)
    assert (found.note, reader.notes) == ("failure 1", {"V2": "failure 1"})
    with reader:
        pass
    assert reader.series(0) == ()
    assert next(calls) == 4


def test_a_source_that_recovers_is_read_on_and_lacks_what_it_did_not_tell() -> None:
    answers = iter([{"requests": 1.0}, *(None, {"memory_bytes": 2.0}) * 3])  # three failures, not in a row
    done = threading.Event()

    def read(_: float) -> dict[str, float]:
        answer = next(answers, {"requests": 4.0})
        if answer is None:
            raise AgentError("restarting")
        if answer == {"requests": 4.0}:
            done.set()
        return answer

    reader = ServerReader({"V2": read}, 1000)
    with reader:
        assert done.wait(DEADLINE_S)
    [found] = reader.series(0)

    assert found.note == "restarting"
    assert np.isnan(found.figures["requests"][:5]).tolist() == [False, True, True, True, False]
    assert found.figures["memory_bytes"][1] == 2.0


def test_a_long_run_is_read_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    count, done, waits = itertools.count(), threading.Event(), list[float]()

    class Waits(threading.Event):
        """The first 29 waits take no time."""

        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout or 0.0)
            if len(waits) < 30:
                return False
            done.set()
            return super().wait(DEADLINE_S)

    kinds = SimpleNamespace(Event=Waits, Thread=threading.Thread, Semaphore=threading.Semaphore)
    monkeypatch.setattr(server_statistics, "MOST_READINGS", 8)
    monkeypatch.setattr(server_statistics, "threading", kinds)
    monkeypatch.setattr(server_statistics, "time", SimpleNamespace(monotonic=lambda: sum(waits)))
    reader = ServerReader({"V2": lambda _: {"requests": float(next(count))}}, 1)
    with reader:
        assert done.wait(DEADLINE_S)
    [found] = reader.series(0)
    assert waits[:15] == [1] * 7 + [2] * 4 + [4] * 4

    requests = found.figures["requests"]
    assert 4 <= len(requests) <= 8
    assert requests[0] == 0
    assert requests[-1] == 30


def test_nothing_is_read_at_a_rate_of_0() -> None:
    reader = ServerReader({"V2": lambda _: {"requests": 1.0}}, 0)
    with reader:
        pass
    assert reader.series(0) == ()
