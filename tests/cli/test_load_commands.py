"""``predict workload`` and ``predict max-qps`` on a real model, in this process and with an agent."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from inferometer.agent.hardware.environment import Device, usable_cores, usable_processors
from inferometer.agent.inference.registry import Registry
from inferometer.agent.server.server import AgentServer, ServerOptions
from inferometer.client.cli.output import INVALID
from inferometer.evaluators.kinds.load.measurement import LoadMeasurement, RateSearchMeasurement
from inferometer.evaluators.kinds.registry import kind_of
from inferometer.evaluators.load.arrivals import ArrivalProcess, Schedule
from inferometer.evaluators.load.queries import Outcome, Queries, QueryLog
from inferometer.evaluators.store.evaluation_store import EvaluationFilter
from inferometer.evaluators.store.opening import open_store
from inferometer.manifests.catalog import Catalog
from tests.cli.conftest import Agent, Answer

CORES = usable_cores()
ONNX = "--framework_name=ONNXRuntime"
WORKLOAD = (
    *(
        "predict",
        "workload",
        ONNX,
        "--initial_qps=100",
        "--min_duration=0.2",
        "--min_queries=20",
        "--warmup=2",
    ),
    "--allow_invalid",  # a busy machine sends late, which is not what most tests are about
)
SEARCH = (
    *(
        "predict",
        "max-qps",
        ONNX,
        "--synthetic",
        "--latency_bound=200",
        "--initial_qps=50",
        "--time_budget=2.2",
    ),
    *("--min_duration=0.15", "--min_queries=10"),
)


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    with AgentServer(Catalog(), Registry(), ServerOptions(port=0)) as server:
        yield server.address


def invalid(evaluation) -> str:  # type: ignore[no-untyped-def]
    return kind_of(evaluation).invalid(evaluation.measurement)


def kept(answer: Answer):  # type: ignore[no-untyped-def] # an Evaluation with its load
    store = open_store(None, "inferometer", Path(os.environ["AGENT_DATA_DIR"]))
    try:
        [found] = store.find(EvaluationFilter(evaluation_id=answer.figure("evaluation")))
    finally:
        store.close()
    return found


@pytest.mark.parametrize(
    ("framework", "remote"),
    [("PyTorch", False), ("MXNet", False), ("ONNXRuntime", False), ("ONNXRuntime", True)],
)
def test_every_query_of_a_workload_is_answered_and_kept(
    agent: Agent, served: str, framework: str, remote: bool
) -> None:
    where = (f"--agent={served}",) if remote else ()

    answer = agent(*WORKLOAD, f"--framework_name={framework}", *where)

    assert answer.code == 0, answer.stderr
    evaluation = kept(answer)
    assert isinstance(evaluation.measurement, LoadMeasurement)
    run = evaluation.measurement.run
    assert len(run.queries) >= 20
    assert run.queries.count(Outcome.ANSWERED) == len(run.queries)
    assert run.stopped == ""
    assert (run.queries.done_ns > run.queries.sent_ns).all()
    assert (run.queries.sent_ns >= run.queries.scheduled_ns).all()
    assert re.search(r"^latency +p50", answer.stdout, re.M)
    assert agent("info", "evaluation", "show", evaluation.id).stdout.count("p99.9") == 1
    assert agent("info", "evaluation", "latency", "-f", "csv").rows == []


def test_the_same_seed_sends_the_same_schedule_and_so_does_the_file_that_it_is_written_to(
    agent: Agent, tmp_path: Path
) -> None:
    path = tmp_path / "schedule.csv"
    writing = (*WORKLOAD, "--synthetic", "--seed=7", f"--write_schedule={path}")

    answers = (
        agent(*writing, "--repeat=2"),
        agent(*WORKLOAD, "--synthetic", "--seed=7"),
        agent(*WORKLOAD, "--synthetic", "--seed=8"),
        agent("predict", "workload", "--synthetic", f"--schedule={path}", "--allow_invalid"),
    )
    refused = agent(*writing)

    assert len(Schedule.read(path)) >= 20
    written, again, other, sent = (kept(answer).measurement.run.checksum for answer in answers)
    assert written == again == sent != other
    assert refused.code != 0
    assert str(path) in refused.error


def test_a_schedule_can_come_from_a_file(agent: Agent, tmp_path: Path) -> None:
    path = tmp_path / "arrivals.csv"
    path.write_text("offset_ms,what\n0,a\n5,b\n5,c\n30,d\n")

    answer = agent(
        *("predict", "workload", f"--schedule={path}", "--latency_bound=5000", "--max_batch_size=4"),
        "--allow_invalid",
    )

    assert answer.code == 0
    run = kept(answer).measurement.run
    assert run.queries.scheduled_ns.tolist() == [0, 5_000_000, 5_000_000, 30_000_000]
    assert run.checksum == Schedule.read(path).checksum
    assert run.queries.batch_size.max() <= 4
    assert "goodput" in answer.stdout


def test_an_evaluation_keeps_the_instances_and_their_threads(agent: Agent) -> None:
    answer = agent(*WORKLOAD, "--framework_name=PyTorch", "--instances=2", "--synthetic")

    assert answer.code == 0, answer.stderr
    evaluation = kept(answer)
    assert evaluation.measurement.options.instances == 2
    assert evaluation.measurement.run.queries.count(Outcome.ANSWERED) >= 20
    assert evaluation.system.threads == max(1, (usable_cores() - 1) // 2)
    assert "2 instances" in agent("info", "evaluation", "show", evaluation.id).stdout
    assert "--instances=2" in kind_of(evaluation).again(evaluation).words


@pytest.mark.parametrize(
    ("kind", "options", "count"), [("workload", "--threads=1", CORES), ("max-qps", f"--threads={CORES}", 1)]
)
def test_an_evaluation_keeps_the_number_that_auto_stands_for(
    agent: Agent, kind: str, options: str, count: int
) -> None:
    command = {"workload": WORKLOAD, "max-qps": (*SEARCH, "--allow_invalid")}[kind]
    answer = agent(*command, "--instances=auto", options)

    assert answer.code == 0, answer.stderr
    evaluation = kept(answer)
    assert evaluation.measurement.options.instances == count
    assert ("--instances=auto" in kind_of(evaluation).again(evaluation).words) is False


def test_the_command_that_repeats_an_evaluation_names_its_gpus(agent: Agent) -> None:
    evaluation = kept(agent(*WORKLOAD, "--framework_name=PyTorch", "--instances=2", "--synthetic"))
    for gpus, words in (("1", {"--gpu_device_id=1"}), ("1,0", {"--gpu_device_id=1", "--gpus=1,0"})):
        system = replace(evaluation.system, device=Device.gpus(gpus))
        found = set(kind_of(evaluation).again(replace(evaluation, system=system)).words)
        assert {each for each in found if each.startswith("--gpu")} == {"--gpu", *words}


def test_an_evaluation_keeps_where_its_instances_were_bound(agent: Agent) -> None:
    answer = agent(*WORKLOAD, "--framework_name=ONNXRuntime", "--pin", "--threads=1", "--synthetic")

    assert answer.code == 0, answer.stderr
    evaluation = kept(answer)
    place = str(min(usable_processors()))
    assert evaluation.system.environment.settings["processors of the instances"] == place
    shown = agent("info", "evaluation", "show", evaluation.id).stdout
    assert f"processors of the instances {place}" in " ".join(shown.split())
    assert "pinned to cores" in " ".join(shown.split())
    assert "--pin" in kind_of(evaluation).again(evaluation).words


def test_a_search_keeps_its_answer_and_its_probes(agent: Agent) -> None:
    answer = agent(*SEARCH, "--allow_invalid")

    assert answer.code == 0, answer.stderr
    assert "queries/s at p99 <= 200 ms" in answer.figure("max QPS")
    search = kept(answer).measurement
    assert isinstance(search, RateSearchMeasurement)
    assert search.answer is not None
    assert len(search.probes) >= 1
    assert len({run.checksum for run in search.probes}) == len(search.probes)
    assert answer.stdout.count(" queries  ") >= len(search.probes)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (("--arrival=poison",), 'unknown arrival process "poison"; did you mean "poisson"?'),
        (("--arrival=gamma:cv=x",), 'arrival gamma: cv is "x"; it must be a number'),
        (("--duration=3",), "duration sets the whole duration; leave out min_duration"),
        (("--concurrency=2",), "concurrency sends a query when a response arrives; leave out initial_qps"),
        (("--concurrency=0",), "concurrency"),
        (("--schedule=a.csv",), "schedule sets when each query is due; leave out initial_qps"),
        (("--synthetic", "--dataset_name=digits_validation"), "synthetic needs no dataset"),
        (("--agent=localhost:1", "--max_batch_size=2"), "max_batch_size applies only to a model in this"),
        (("--agent=localhost:1", "--instances=2"), "instances applies only to a model in this process"),
        (("--agent=localhost:1", "--pin"), "pin applies only to a model in this process"),
        (("--agent=localhost:1", "--gpus=0"), "gpus applies only to a model in this process"),
        (("--gpus=0,x",), 'gpus is "0,x"; give indices of GPUs, such as 0,1'),
        (("--gpus=0,1",), "gpu:0,1: each GPU needs an instance, but instances is 1"),
        (("--instances=0",), "instances is 0; it must be at least 1"),
        (("--instances=many",), 'instances is "many"; it must be a whole number or auto'),
        (("--agent=localhost:1", "--instances=auto"), "instances applies only to a model in this process"),
        (("--pin", "--threads=999"), "pin: instances times threads are 1 × 999 = 999, but only"),
        (("--instances=65",), "instances is 65; it must be at least 1 and at most 64"),
        (("--initial_qps=0",), "initial_qps"),
    ],
)
def test_what_makes_no_sense_is_said_before_a_model_is_loaded(
    agent: Agent, wrong: tuple[str, ...], said: str
) -> None:
    answer = agent(*WORKLOAD, *wrong)
    assert answer.code == 2
    assert said in answer.error


def test_a_schedule_that_cannot_be_read_is_said(agent: Agent) -> None:
    answer = agent("predict", "workload", "--schedule=nowhere.csv")
    assert answer.code == 2
    assert "schedule nowhere.csv: cannot be read" in answer.error


def test_a_closed_loop_keeps_queries_in_flight(agent: Agent) -> None:
    answer = agent("predict", "workload", "--synthetic", "--concurrency=3", "--duration=0.3", "--warmup=0")

    assert answer.code == 0, answer.stderr
    load = kept(answer).measurement
    assert load.options.concurrency == 3
    run = load.run
    assert run.checksum == ""
    assert (run.queries.lag_ns == 0).all()
    began, done = run.queries.sent_ns, run.queries.done_ns
    in_flight = [(int(((began <= at) & (done > at)).sum())) for at in began]
    assert max(in_flight) == 3


def test_a_schedule_is_written_only_once_the_model_is_open(agent: Agent, tmp_path: Path) -> None:
    path = tmp_path / "schedule.csv"

    unknown = agent(*WORKLOAD, "--synthetic", f"--write_schedule={path}", "--model_name=Nothing")
    assert unknown.code != 0
    assert not path.exists()

    path.write_text("kept")
    taken = agent(*WORKLOAD, "--synthetic", f"--write_schedule={path}", "--model_name=Nothing")
    assert taken.error.endswith(f"{path} exists; name another file")
    assert path.read_text() == "kept"

    nowhere = agent(*WORKLOAD, "--synthetic", f"--write_schedule={tmp_path}/no/where.csv")
    assert nowhere.error.endswith(f"where.csv: the folder {tmp_path}/no does not exist")


def test_the_percentile_that_is_asked_for_is_shown_and_judged(agent: Agent) -> None:
    bounds = ("--percentile=97", "--latency_bound=10000")

    answer = agent(*WORKLOAD, "--synthetic", *bounds)
    missed = agent(*WORKLOAD, "--synthetic", "--publish=false", "--percentile=97", "--latency_bound=0.001")

    assert re.search(r"^ +p97 +\d", answer.stdout, re.M)
    assert answer.figure("bound") == "p97 kept 10000 ms"
    assert missed.figure("bound") == "p97 missed 0.001 ms"
    [row] = agent("info", "evaluation", "workload", "-f", "csv").rows
    assert (row["judged_percentile"], row["kept_bound"]) == ("97.0", "true")
    assert float(row["latency_ms_judged"]) > 0


def test_a_model_in_this_process_leaves_a_core_to_what_sends_unless_told_otherwise(agent: Agent) -> None:
    evaluation = kept(answer := agent(*WORKLOAD, "--synthetic", "--framework_name=PyTorch"))
    told = agent(
        *WORKLOAD, "--synthetic", "--publish=false", "--framework_name=PyTorch", f"--threads={CORES + 1}"
    )

    assert 1 <= evaluation.system.threads <= max(1, CORES - 1)
    said = f"threads per operator: {evaluation.system.threads}; one of {CORES} cores is left"
    assert (said in answer.stderr) == (CORES > 1)
    assert told.code == 0
    assert "threads per operator" not in told.stderr


def test_where_the_time_went_is_told_in_its_parts(agent: Agent, served: str) -> None:
    answer = agent(*WORKLOAD, "--synthetic")

    for part in ("queue", "batch", "predict"):
        assert re.match(r"p50 \d+\.\d+  p99 ", answer.figure(part))
    remote = agent(*WORKLOAD, "--synthetic", "--publish=false", f"--agent={served}")
    assert re.search(r"^predict ", remote.stdout, re.M)
    [row] = agent("info", "evaluation", "workload", "-f", "csv").rows
    assert 0 < float(row["batch_ms_p50"]) <= float(row["batch_ms_p99"])


def test_a_rate_beyond_all_reason_is_refused_before_its_schedule_is_drawn(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[float] = []
    draw = ArrivalProcess.offsets_ns

    def noted(process: ArrivalProcess, rate_qps: float, *rest: object) -> object:
        drawn.append(rate_qps)
        return draw(process, rate_qps, *rest)  # type: ignore[arg-type] # what it was called with

    monkeypatch.setattr(ArrivalProcess, "offsets_ns", noted)

    answer = agent("predict", "workload", "--synthetic", "--initial_qps=1e7", "--duration=5")

    assert answer.code == 2
    assert "10000000 queries/s is more than" in answer.error
    assert max(drawn, default=0.0) < 1e6


def test_more_than_half_of_what_this_machine_can_send_is_refused_unless_forced(
    agent: Agent, tmp_path: Path
) -> None:
    path = tmp_path / "burst.txt"
    path.write_text("0\n" * 300_000)
    load = ("predict", "workload", "--synthetic", f"--schedule={path}")

    answer = agent(*load)

    assert answer.code == 2
    assert "half of what this machine can send on time" in answer.error
    short = tmp_path / "short.txt"
    short.write_text("0\n0.000001\n0.000002\n")
    assert agent("predict", "workload", "--synthetic", f"--schedule={short}").code == 2
    forced = agent("predict", "workload", "--synthetic", f"--schedule={short}", "--force", "--allow_invalid")
    assert forced.code == 0


@pytest.fixture
def lag_ms(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has every query sent, and answered, as much later; by default that is the latency bound and more."""
    logged, late_ns = QueryLog.queries, getattr(request, "param", 300) * 1_000_000

    def queries(log: QueryLog, *part: int) -> Queries:
        found = logged(log, *part)
        sent_ns, done_ns = (
            np.where(times_ns >= 0, times_ns + late_ns, -1) for times_ns in (found.sent_ns, found.done_ns)
        )
        return replace(found, sent_ns=sent_ns, done_ns=done_ns)

    monkeypatch.setattr(QueryLog, "queries", queries)


@pytest.mark.usefixtures("lag_ms")
@pytest.mark.parametrize("lag_ms", [20], indirect=True)
def test_a_lag_that_changes_no_answer_makes_no_search_invalid(agent: Agent) -> None:
    answer = agent(*SEARCH)

    assert answer.code == 0, answer.stdout
    assert invalid(kept(answer)) == ""


@pytest.mark.usefixtures("lag_ms")
def test_an_invalid_workload_has_an_exit_code_of_its_own(agent: Agent) -> None:
    load = (
        *("predict", "workload", "--initial_qps=100", "--min_duration=0.2", "--min_queries=10"),
        *("--synthetic", "--latency_bound=200"),
    )

    answer = agent(*load)
    allowed = agent(*load, "--allow_invalid", "--publish=false")

    assert (answer.code, allowed.code) == (INVALID, 0), answer.stderr
    check_kept_as_invalid(agent, answer, "workload")
    for said in (answer, allowed):
        assert "which is in none of service, queue, batch and predict" in said.figure("INVALID")


def check_kept_as_invalid(agent: Agent, answer: Answer, report: str) -> None:
    """The evaluation and its row have the reason, and it is not compared."""
    evaluation = kept(answer)
    assert "lag" in invalid(evaluation)
    [row] = agent("info", "evaluation", report, "-f", "csv").rows
    assert "without the harness's own lag" in row["invalid"]
    compared = agent("compare", evaluation.id, evaluation.id)
    assert compared.code == 2
    assert "is INVALID" in compared.error


@pytest.mark.usefixtures("lag_ms")
def test_an_invalid_search_has_its_exit_code_too_and_says_the_reason_once(agent: Agent) -> None:
    answer = agent(*SEARCH)

    assert answer.code == INVALID, answer.stderr
    assert agent(*SEARCH, "--allow_invalid", "--publish=false").code == 0
    check_kept_as_invalid(agent, answer, "max-qps")
    assert answer.figure("max QPS").startswith("INVALID: ")
    assert answer.stdout.count("without the harness's own lag") == 1
    probes = re.findall(r"queries/s +\d+ queries .*?(INVALID)?$", answer.stdout, re.M)
    assert len(probes) >= 2
    assert set(probes) == {"INVALID"}


@pytest.mark.parametrize("name", ["qps", "findmaxqps", "max_qps"])
def test_the_search_has_its_other_names(agent: Agent, name: str) -> None:
    assert "the highest rate" in agent("predict", name, "--help").stdout
