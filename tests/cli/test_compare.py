"""``agent compare``: worse, same and undecided figures, and evaluations that cannot be compared."""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferometer.agent.hardware.environment import Device, DeviceKind, Weights
from inferometer.agent.tracing.recorder import TraceLevel
from inferometer.evaluators.conditions.conditions import Conditions, Stability
from inferometer.evaluators.datasets.base import DatasetIdentity
from inferometer.evaluators.evaluation import Evaluation, Status
from inferometer.evaluators.kinds.batches.measurement import BatchTimes
from inferometer.evaluators.kinds.batches.request import BatchOptions
from inferometer.evaluators.kinds.load.measurement import (
    LoadMeasurement,
    LoadOptions,
    RateAnswer,
    RateSearchMeasurement,
)
from inferometer.evaluators.load.queries import LoadRun, Outcome, Queries
from inferometer.evaluators.store.evaluation_store import EvaluationStore
from inferometer.evaluators.store.opening import open_store
from inferometer.evaluators.tasks.metric import Accuracy
from tests.cli.conftest import Agent
from tests.contract.store_fixtures import make_evaluation, make_system

BATCHES = 400
QUERIES = 3000
HAVE = "p50, p90, p99, throughput, top1"
Keep = Callable[..., str]


@pytest.fixture
def store() -> Iterator[EvaluationStore]:
    store = open_store(None, "inferometer", Path(os.environ["AGENT_DATA_DIR"]))
    yield store
    store.close()


@pytest.fixture
def keep(store: EvaluationStore) -> Keep:
    """Keeps evaluations and returns their ids with commas between."""

    def kept(*evaluations: Evaluation) -> str:
        for evaluation in evaluations:
            assert store.save(evaluation)
        return ",".join(evaluation.id for evaluation in evaluations)

    return kept


def varied_ns(count: int, mean_ms: float, seed: int) -> Any:
    return np.rint(np.random.default_rng(seed).gamma(400, mean_ms * 1e6 / 400, count)).astype(np.int64)


def batched(mean_ms: float = 10, seed: int = 0, *, batch_size: int = 16, **changes: Any) -> Evaluation:
    """Batches with a mean time, spread by 5 %."""
    times = varied_ns(BATCHES, mean_ms, seed)
    kept: dict[str, Any] = {
        "options": BatchOptions(batch_size, 64),
        "trace_level": TraceLevel.NO_TRACE,
        "times": BatchTimes(np.full(BATCHES, batch_size, np.int64), *[times] * 4),
        "elapsed_ns": int(times.sum()),
        "failures": (),
    }
    return make_evaluation(**kept | changes)


def side(mean_ms: float, first_seed: int, **changes: Any) -> Sequence[Evaluation]:
    return [batched(mean_ms, first_seed + number, **changes) for number in range(4)]


def loaded(mean_ms: float = 10, seed: int = 0, *, broken: int = 0, **changes: Any) -> Evaluation:
    """A workload of queries whose latency has a mean; every ``broken``-th has no right answer."""
    due = np.arange(QUERIES, dtype=np.int64) * 10_000_000
    run_changes = {name: changes.pop(name) for name in ("stopped", "invalid") if name in changes}
    outcome = np.full(QUERIES, int(Outcome.ANSWERED), np.int64)
    if broken:
        outcome[::broken] = int(Outcome.TIMED_OUT)
    none = np.full(QUERIES, -1, np.int64)
    queries = Queries(due, due, due + varied_ns(QUERIES, mean_ms, seed), outcome, none, none, none + 1)
    given = {name: changes.pop(name) for name in list(changes) if name in LoadOptions.__dataclass_fields__}
    given = {"arrival": "poisson", "rate_qps": 100.0, "latency_bound_ms": 100.0} | given
    options = LoadOptions(**given)
    run_changes |= {
        "seed": changes.pop("run_seed", seed),
        "checksum": changes.pop("checksum", f"sha256:{seed}"),
    }
    run = LoadRun(options.rate_qps, options.arrival, queries=queries, **run_changes)
    return make_evaluation(measurement=LoadMeasurement(options, run, 0), **changes)


def searched(rate: float | None, **options: Any) -> Evaluation:
    answer = (
        RateAnswer(None, None, None, "none")
        if rate is None
        else RateAnswer(rate, rate / 1.01, rate * 1.01, "single server")
    )
    asked = LoadOptions("poisson", 10, **{"latency_bound_ms": 100.0, "percentile": 99.0} | options)
    return make_evaluation(measurement=RateSearchMeasurement(asked, (), 0, answer))


def test_like_and_like_is_no_regression(agent: Agent, keep: Keep) -> None:
    answer = agent("compare", keep(*side(10, 1)), keep(*side(10, 5)), "-f", "csv")

    assert answer.code == 0, answer.stderr
    assert [row["figure"] for row in answer.rows] == ["p50", "p90", "p99", "throughput", "top1"]
    assert {row["verdict"] for row in answer.rows} == {"same"}
    assert [row["unit"] for row in answer.rows] == ["ms", "ms", "ms", "inputs/s", "share"]
    assert answer.stderr.splitlines() == [
        "threshold 5 %, the default; --noise measures it, --threshold gives another",
        "no regression; the same in p50, p90, p99, throughput and top1",
    ]


def test_a_slower_side_is_a_regression_and_the_other_way_round_better(agent: Agent, keep: Keep) -> None:
    fast, slow = keep(*side(10, 1)), keep(*side(13, 5))

    worse = agent("compare", fast, slow)
    better = agent("compare", slow, fast, "-f", "json")

    assert worse.code == 1
    assert "verdict" in worse.stdout.splitlines()[0]
    last = worse.stdout.splitlines()[-1]
    assert re.match(r"REGRESSION: B is worse than A: p50 is 1\.\d+ times A's \[1\.\d+, 1\.\d+\]; p90 ", last)
    assert last.endswith("; the same in top1")
    assert better.code == 0
    rows = {row["figure"]: row for row in json.loads(better.stdout)}
    assert {row["verdict"] for name, row in rows.items() if name != "top1"} == {"better"}
    assert rows["p50"]["a"] == pytest.approx(13, rel=0.01)
    assert rows["p50"]["ratio"] == pytest.approx(10 / 13, rel=0.01)
    assert rows["p50"]["ratio_low"] < 10 / 13 < rows["p50"]["ratio_high"]
    assert rows["throughput"]["b"] == pytest.approx(16 / 0.010, rel=0.01)


def test_one_figure_alone_can_decide(agent: Agent, keep: Keep) -> None:
    a, b = keep(*side(10, 1)), keep(*side(13, 5))

    answer = agent("compare", a, b, "--figures=top1", "-f", "csv")

    assert answer.code == 0
    assert [row["figure"] for row in answer.rows] == ["top1"]
    assert answer.error == "no regression; the same in top1"
    assert agent("compare", a, b, "--figures=top1,p25").code == 1


def test_a_fall_of_accuracy_is_a_regression(agent: Agent, keep: Keep) -> None:
    a, b = keep(*side(10, 1)), keep(*side(10, 5, accuracy=Accuracy(300, 350, 360)))

    answer = agent("compare", a, b, "-f", "csv")

    assert answer.code == 1
    assert "B is worse than A: top1 is 0.8547 times A's" in answer.stderr
    assert agent("compare", a, b, "--accuracy_threshold=0.2").code == 0


def test_the_threshold_is_given_or_measured(agent: Agent, keep: Keep) -> None:
    a, b = keep(*side(10, 1)), keep(*side(11, 5))
    noise = keep(batched(10, 9), batched(12, 10))
    quiet = keep(batched(10, 11), batched(10, 12))

    assert agent("compare", a, b).code == 1
    assert agent("compare", a, b, "--threshold=0.2").code == 0
    measured = agent("compare", a, b, f"--noise={noise}", "-f", "csv")
    assert measured.code == 0
    assert float(measured.rows[0]["threshold"]) == pytest.approx(0.2, abs=0.02)
    assert float(measured.rows[-1]["threshold"]) == 0.01
    assert "default" not in measured.stderr
    assert agent("compare", a, b, f"--noise={quiet}").code == 1


def test_a_group_is_a_side_and_a_beginning_is_enough(agent: Agent, keep: Keep) -> None:
    groups = [str(uuid.uuid4()) for _ in range(2)]
    keep(*side(10, 1, group_id=groups[0]))
    keep(*side(13, 5, group_id=groups[1]))

    assert agent("compare", groups[0], groups[1][:13]).code == 1


def test_runs_that_repeat_a_dataset_as_often_as_they_need_are_alike(agent: Agent, keep: Keep) -> None:
    options = BatchOptions(16, 64, target_ci_percent=5.0)
    runs = [batched(10, seed, options=options) for seed in range(4)]
    twice = np.tile(varied_ns(BATCHES, 10, 7), 2)
    longer = batched(10, options=options, times=BatchTimes(np.full(2 * BATCHES, 16, np.int64), *[twice] * 4))

    answer = agent("compare", keep(*runs[:2]), keep(*runs[2:], longer))

    assert answer.code == 0, answer.stderr
    assert "inputs:" not in answer.stderr


def test_runs_of_one_process_are_no_several_processes(agent: Agent, keep: Keep) -> None:
    """Until now, --repeat opened the model anew in one process; the agent's own process is always one."""
    group, fresh = (str(uuid.uuid4()) for _ in range(2))
    a = keep(*side(10, 1, group_id=group))
    keep(*(replace(each, process=n) for n, each in enumerate(side(10, 5, group_id=fresh), start=1)))
    served = [replace(each, system=replace(each.system, agent="gpu-1:50051")) for each in side(10, 9)]

    assert "warning: A is one process, which" in agent("compare", a, fresh).stderr
    assert "one process" not in agent("compare", fresh, keep(*side(10, 13))).stderr
    assert "warning: B is one process, which" in agent("compare", fresh, keep(*served)).stderr


def test_what_cannot_be_told_is_a_warning_or_a_failure(agent: Agent, keep: Keep) -> None:
    a, b = keep(batched(10, 1)), keep(batched(10, 2))

    answer = agent("compare", a, b)
    strict = agent("compare", a, b, "--fail_on_undecided")

    assert (answer.code, strict.code) == (0, 1)
    assert "warning: A and B are one process each, which cannot tell" in answer.stderr
    assert "warning: p99 is undecided: too few values for an interval" in answer.stderr
    assert answer.stdout.splitlines()[-1].startswith("no regression was shown; ")
    [p99] = [row for row in agent("compare", a, b, "-f", "csv").rows if row["figure"] == "p99"]
    assert [p99[key] for key in ("a", "b", "ratio", "ratio_low")] == [""] * 4
    assert agent("compare", a, b, "--fail_on_undecided", "--figures=p50,throughput").code == 0


def test_an_undecided_figure_says_how_much_worse_it_may_be(agent: Agent, keep: Keep) -> None:
    a, b = keep(*side(10, 1)), keep(*side(10.2, 5))

    answer = agent("compare", a, b, "--threshold=0.02", "--figures=p50,throughput")

    assert answer.code == 0
    assert re.search(r"p50 is undecided: B may be worse by up to [2-4]\.?\d* %, where 2 %", answer.stderr)
    assert re.search(r"throughput is undecided: B may be worse by up to [2-4]\.?\d* %", answer.stderr)


def test_the_queries_of_workloads_are_compared(agent: Agent, keep: Keep) -> None:
    a, b = keep(*(loaded(10, seed) for seed in range(3))), keep(*(loaded(14, seed) for seed in (3, 4, 5)))
    failing = keep(*(loaded(10, seed, broken=20) for seed in (6, 7, 8)))

    slower = agent("compare", a, b, "-f", "csv")
    broken = agent("compare", a, failing, "-f", "csv")

    assert slower.code == 1
    found = {row["figure"]: row["verdict"] for row in slower.rows}
    assert found == {"p50": "worse", "p90": "worse", "p99": "worse", "throughput": "same"}
    assert slower.rows[-1]["unit"] == "queries/s"
    assert broken.code == 1
    assert "p99 is inf times A's" in broken.stderr
    assert agent("compare", a, a.replace(a[:36], b[:36])).code == 2


def test_queries_of_the_empty_start_do_not_count(agent: Agent, keep: Keep) -> None:
    a, b = loaded(10, 1), loaded(10, 2)
    load = b.measurement
    assert isinstance(load, LoadMeasurement)
    run = load.run
    slow = replace(run.queries, done_ns=run.queries.done_ns + 10**9 * (run.queries.scheduled_ns < 10**10))
    runs = [replace(run, queries=slow, cut_ns=cut_ns) for cut_ns in (0, 10**10)]
    whole, cut = (
        keep(replace(b, id=str(uuid.uuid4()), measurement=replace(load, run=each))) for each in runs
    )

    assert agent("compare", keep(a), whole).code == 1
    assert agent("compare", a.id, cut).code == 0


def test_the_answers_of_searches_are_compared(agent: Agent, keep: Keep) -> None:
    a, lower = keep(searched(80), searched(81)), keep(searched(60), searched(61))
    none, like = keep(searched(None)), keep(searched(79.8), searched(81))

    worse = agent("compare", a, lower, "-f", "csv")

    assert worse.code == 1
    [row] = worse.rows
    assert (row["figure"], row["unit"], row["verdict"]) == ("max_qps", "queries/s", "worse")
    assert float(row["ratio"]) == pytest.approx(0.7516, abs=0.001)
    assert agent("compare", a, none).code == 1
    assert agent("compare", a, like).code == 0
    assert agent("compare", a, lower, f"--noise={keep(searched(50), searched(90))}").code == 0


def test_in_what_both_differ_is_said(agent: Agent, keep: Keep) -> None:
    system = make_system(
        hostname="Bench-2",
        weights=Weights.RANDOM,
        threads=4,
        device=Device(DeviceKind.GPU, 0),
        framework_version="2.0",
    )
    dataset = DatasetIdentity("vision", "digits_test", "1.0", None, 360)
    other = batched(
        10, 5, batch_size=8, system=replace(system, checksums={"graph": "sha256:1"}), dataset=dataset
    )

    answer = agent("compare", keep(*side(10, 1)), keep(other), "-f", "csv")

    said = [line for line in answer.stderr.splitlines() if line.startswith("differs: ")]
    assert [line.split(":")[1].strip() for line in said] == [
        *("framework", "weights", "dataset", "device", "threads", "host", "batch size", "inputs")
    ]
    assert "differs: batch size: 16 (A), 8 (B)" in said
    assert "top1" not in {row["figure"] for row in answer.rows}
    assert "differs" not in agent("compare", keep(batched(10, 11)), keep(batched(10, 12))).stderr


def test_for_how_long_a_workload_was_is_said(agent: Agent, keep: Keep) -> None:
    a, b = loaded(10, 1, max_duration_s=2.0), loaded(10, 2, min_duration_s=8.0, min_queries=700)

    answer = agent("compare", keep(a), keep(b))

    assert [line for line in answer.stderr.splitlines() if line.startswith("differs: ")] == [
        "differs: duration: 2 s (A), at least 8 s (B)",
        "differs: queries: as many as are due (A), at least 700 (B)",
    ]
    mixed = agent("compare", f"{a.id},{b.id}", keep(loaded(10, 3)))
    assert "A mixes evaluations with duration 2 s and at least 8 s" in mixed.error


def test_the_same_schedule_from_a_file_is_the_same_load(agent: Agent, keep: Keep) -> None:
    drawn = keep(loaded(10, 1, max_duration_s=2.0, checksum="sha256:ab"))
    files = keep(
        *(
            loaded(10, seed, arrival=f"file {seed}.csv", run_seed=None, checksum="sha256:ab")
            for seed in (2, 3)
        )
    )

    answer = agent("compare", drawn, files)

    assert answer.code == 0, answer.stderr
    assert "differs" not in answer.stderr
    another = keep(loaded(10, 4, max_duration_s=2.0))
    for mixed in (f"{drawn},{another}", f"{another},{drawn}"):
        assert "B file 2.csv (sha256:ab)" in agent("compare", mixed, files).error


def test_other_weights_under_the_same_name_are_noticed(agent: Agent, keep: Keep) -> None:
    files = {"weights": "sha256:" + "a" * 64}
    retrained = batched(10, 5, system=make_system(checksums=files))

    answer = agent("compare", keep(batched(10, 1)), keep(retrained))

    assert "differs: model files: graph sha256:000000000000 (A), weights sha256:aaaaaaaaaaaa (B)" in (
        answer.stderr.splitlines()
    )
    assert (
        "A mixes evaluations with model files"
        in agent("compare", keep(batched(10, 6), batched(10, 7, system=retrained.system)), retrained.id).error
    )


def test_profiled_runs_of_a_group_are_left_out_and_others_refused(agent: Agent, keep: Keep) -> None:
    group = str(uuid.uuid4())
    profiled = batched(20, 9, trace_level=TraceLevel.FRAMEWORK_TRACE, group_id=group)
    keep(*side(10, 1, group_id=group), profiled)
    b = keep(*side(10, 5))

    left_out = agent("compare", group, b)
    refused = agent("compare", b, profiled.id)

    assert left_out.code == 0
    assert "A: left out 1 of 5 evaluations of the group" in left_out.stderr
    assert refused.code == 2
    assert "ran under a profiler (FRAMEWORK_TRACE)" in refused.error
    assert agent("compare", b, profiled.id, "--figures=top1").code == 0


@pytest.mark.parametrize(
    ("b", "said"),
    [
        ([batched(status=Status.INTERRUPTED)], "is interrupted: its figures cover only a part"),
        ([batched(batch_size=8), batched()], "B mixes evaluations with batch size 8 and 16"),
        ([loaded()], "A is an evaluation batch by batch and B a workload"),
        ([searched(80)], "and B a search for the highest rate"),
        ([batched(times=BatchTimes(*[np.full(3, 5)] * 5))], "has no batch that held 16 inputs"),
    ],
)
def test_what_is_not_to_be_compared_is_refused(
    agent: Agent, keep: Keep, b: Sequence[Evaluation], said: str
) -> None:
    answer = agent("compare", keep(batched()), keep(*(replace(each, id=str(uuid.uuid4())) for each in b)))

    assert answer.code == 2
    assert said in answer.error


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        (loaded(), loaded(invalid="lag p99 5 ms"), "is INVALID: lag p99 5 ms"),
        (loaded(), loaded(stopped="the backlog grew"), "was stopped: the backlog grew"),
        (
            loaded(),
            loaded(seed=1, rate_qps=50.0),
            "A has load poisson at 100 queries/s and B poisson at 50 queries/s",
        ),
        *(
            (
                loaded(arrival=arrival, max_duration_s=2.0),
                loaded(seed=1, arrival=arrival, max_duration_s=8.0),
                f"A has load {arrival} at 100 queries/s for 2 s and B {arrival} at 100 queries/s for 8 s",
            )
            for arrival in ("ramp:from_share=0.1,to_share=1,over_s=60", "bursts:on_s=1,off_s=1")
        ),
        (
            loaded(arrival="file a.csv", run_seed=None, checksum="sha256:" + "1" * 64),
            loaded(arrival="file a.csv", run_seed=None, checksum="sha256:" + "2" * 64),
            "A has load file a.csv (sha256:111111111111) at 100 queries/s and B file a.csv (sha256:22",
        ),
        (searched(80), searched(80, percentile=90.0), "A has percentile 99 and B 90"),
        (searched(80), searched(80, latency_bound_ms=50.0), "A has latency bound 100 ms and B 50 ms"),
    ],
)
def test_loads_that_tell_nothing_of_each_other_are_refused(
    agent: Agent, keep: Keep, a: Evaluation, b: Evaluation, said: str
) -> None:
    answer = agent("compare", keep(replace(a, id=str(uuid.uuid4()))), keep(replace(b, id=str(uuid.uuid4()))))

    assert answer.code == 2
    assert said in answer.error


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (("--noise=A", "--threshold=0.1"), 2, "leave out one"),
        *(
            ((f"--figures={name}",), 2, f"{name} is not a figure of these evaluations; they have {HAVE} and")
            for name in ("max_qps", "p5000", "throughputs", "ttft_p50")
        ),
        (("--threshold=-1",), 2, "--threshold"),
        (("--threshold=nan",), 2, "--threshold"),
        (("--accuracy_threshold=nan",), 2, "--accuracy_threshold"),
        (("--noise=nowhere",), 2, "holds no evaluation or group nowhere"),
        (("--noise=,",), 2, "noise names no evaluation"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    agent: Agent, keep: Keep, options: tuple[str, ...], code: int, said: str
) -> None:
    answer = agent("compare", keep(*side(10, 1)), keep(*side(10, 5)), *options)

    assert answer.code == code
    assert said in answer.error


def test_runs_that_differ_by_more_than_the_figure_give_no_threshold(agent: Agent, keep: Keep) -> None:
    a, b = keep(batched(30)), keep(batched(10, 1))
    noisy = keep(batched(10, 2), batched(35, 3))
    answer = agent("compare", a, b, f"--noise={noisy}")
    assert answer.code == 0
    assert "better" not in answer.stdout
    assert answer.stderr.count("give more and longer runs, made on a quiet machine") == 4
    assert "undecided in" in answer.stdout
    assert agent("compare", a, b, "--threshold=1.5").stdout.count("better in") == 1  # when one asks for it


def test_noise_takes_two_runs_and_no_side_is_compared_with_itself(agent: Agent, keep: Keep) -> None:
    a, b = keep(*side(10, 1)), keep(*side(10, 5))

    assert "give at least two of the same system" in agent("compare", a, b, f"--noise={a[:36]}").error
    assert "is on both sides" in agent("compare", a, a[:36]).error
    judged = agent("compare", a, b, f"--noise={a},{b[:36]}")
    assert judged.code == 2
    assert f"evaluation {b[:36]} of --noise is one of B" in judged.error
    assert "holds no evaluation or group xyz" in agent("compare", a, "xyz").error
    assert agent("compare", a, "xyz").code == 2


def test_rows_go_to_a_file_and_the_conclusion_does_not(agent: Agent, keep: Keep, tmp_path: Path) -> None:
    path = tmp_path / "comparison.json"

    answer = agent("compare", keep(*side(10, 1)), keep(*side(13, 5)), "-f", "json", "-o", path)

    assert answer.code == 1
    assert answer.stdout == ""
    assert answer.stderr.splitlines()[-1].startswith("REGRESSION")
    assert len(json.loads(path.read_text())) == 5


def test_a_side_that_was_not_stable_is_named_in_one_line(agent: Agent, keep: Keep) -> None:
    took = Conditions(Stability.DISTURBED, ("other processes took 48 % of the CPU",))
    calm = Conditions(Stability.STABLE)
    one = [batched(10, seed, conditions=conditions) for seed, conditions in ((1, took), (2, calm), (3, took))]
    other = [batched(10, 4, conditions=replace(took, stability=Stability.UNSTABLE))]

    answer = agent("compare", keep(*one), keep(*other))
    stable = agent("compare", keep(batched(10, 5, conditions=calm)), keep(batched(10, 6)))

    said = [line for line in answer.stderr.splitlines() if "conditions" in line]
    reason = "other processes took 48 % of the CPU; its difference may be that of the conditions"
    assert said == [
        f"warning: A: 2 of 3 evaluations not stable, such as {one[0].id} disturbed: {reason}",
        f"warning: B: {other[0].id} unstable: {reason}",
    ]
    assert "conditions" not in stable.stderr
