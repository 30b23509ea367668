"""Load on scripted systems: the stall, the capacity, and each query counted once."""

import json
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import numpy as np
import pytest
from fake_framework import SCRIPT, SERVED, SIDE, fake_registry
from load_runs import latencies

from inferometer.agent.inference.session import SessionOptions, open_session, select_model
from inferometer.agent.protocol.messages import decode_response, encode_response
from inferometer.client.remote.native.agent import RemoteTarget, open_remote_agent
from inferometer.evaluators.evaluation import measures
from inferometer.evaluators.kinds.load.measurement import LoadMeasurement, LoadOptions
from inferometer.evaluators.kinds.load.request import MaxQpsRequest
from inferometer.evaluators.kinds.load.search import search_max_qps
from inferometer.evaluators.kinds.load.summary import LoadSummary
from inferometer.evaluators.kinds.registry import kind_of
from inferometer.evaluators.load.arrivals import ConstantArrivals, Extent, Schedule
from inferometer.evaluators.load.issuer import RunLimits
from inferometer.evaluators.load.load_session import LoadSession
from inferometer.evaluators.load.local_target import LocalTarget
from inferometer.evaluators.load.queries import Outcome
from inferometer.evaluators.load.target import PreparedInputs
from inferometer.evaluators.statistics import percentile
from inferometer.evaluators.store.evaluation_store import evaluation_from_json, evaluation_to_json
from inferometer.manifests.catalog import Catalog
from tests.contract.store_fixtures import make_evaluation

ONE = PreparedInputs.of_batch({"data": np.zeros((1, 1, SIDE, SIDE), np.float32)}, "black")
HERE_AND_REMOTE = pytest.mark.parametrize("remote", [False, True], ids=["here", "agent"])
PARTS = 4


@pytest.fixture
def scripted_target(manifest_folder, spawn_agent):
    """Opens the model that follows a script: in this process, or at an agent in a process of its own."""

    @contextmanager
    def opened(remote=False, **script):
        (manifest_folder / SCRIPT).write_text(json.dumps(script))
        with ExitStack() as stack:
            if remote:
                system = stack.enter_context(open_remote_agent(spawn_agent().address, "Scripted"))
                yield stack.enter_context(RemoteTarget(system, ONE))
                return
            registry = fake_registry()
            manifest = select_model(Catalog([manifest_folder]), registry, "Scripted", None, "Fake")
            system = stack.enter_context(open_session(manifest, SessionOptions(), registry))
            yield stack.enter_context(LocalTarget(system, ONE))

    return opened


def constant(rate_qps, count):
    return Schedule.drawn(ConstantArrivals(), rate_qps, Extent(0.0, count), 0)


@pytest.mark.real_time
@HERE_AND_REMOTE
def test_a_stall_shows_in_p99_in_the_share_of_the_queries_that_fell_into_it(
    scripted_target, manifest_folder, remote
):
    """A thirtieth of: 200 queries/s for 60 s, 2 ms each and one of 6 s.

    The truth is worked out from how long the predictions took, as a sleep of 2 ms may take 20.
    """
    count, rate_qps, stall_s = 400, 200.0, 0.2
    schedule = constant(rate_qps, count)
    with scripted_target(remote, service_s=0.002, stalls={"200": stall_s}) as target:
        session = LoadSession(target, RunLimits(10_000.0))
        session.run(schedule)
    [run] = session.runs
    served_s = np.array(json.loads((manifest_folder / SERVED).read_text())) / 1e9
    expected_s = latencies(np.full(count, 1 / rate_qps), served_s)[schedule.offsets_ns >= run.cut_ns]
    found = LoadSummary.of(run.queries, cut_ns=run.cut_ns)

    assert run.stopped == ""
    assert found.outcomes[Outcome.ANSWERED] == found.queries
    [p99] = [each for each in found.percentiles if each.percent == 99]
    assert percentile(expected_s, 99) > 0.14
    assert p99.value_ns / 1e9 > 0.95 * percentile(expected_s, 99)
    assert p99.value_ns / 1e9 < percentile(expected_s, 99) + 0.2
    assert found.predict.p99_ns / 1e9 < 0.1, "most predictions are short: only the schedule tells"


def highest_rate_qps(service_s, bound_s):
    """The rate at which one query in a hundred is later than the bound, for one server in order.

    By brute force, with as many queries as make this share exact to some percent.
    """
    random = np.random.default_rng(5)
    service = random.choice(service_s, 200_000)
    gaps = random.standard_exponential(len(service))
    low, high = 0.0, 1 / service.mean()
    for _ in range(20):
        middle = (low + high) / 2
        late = np.mean(latencies(gaps / middle, service) > bound_s)
        low, high = (low, middle) if late > 0.01 else (middle, high)
    return low


def test_the_truth_of_one_server_that_takes_10_ms_is_77_queries_a_second():
    assert highest_rate_qps(np.full(1000, 0.01), 0.1) == pytest.approx(77.4, rel=0.01)


def occupied_s(runs):
    """How long each query kept the one server from the next, in their order, by when it was sent and done."""
    found = []
    for run in runs:
        queries = run.queries.chosen(run.queries.outcome == Outcome.ANSWERED)
        begun_ns = np.maximum(queries.sent_ns[1:], queries.done_ns[:-1])
        found.append((queries.done_ns[1:] - begun_ns) / 1e9)
    return np.concatenate(found)


@pytest.mark.real_time
def test_a_search_finds_the_capacity_of_a_predictor_that_sleeps(scripted_target, manifest_folder):
    """The truth is by brute force from how long the queries took, which varies with what else is run.

    Where it varied while the search went on, each part of the search has a truth of its own, and the answer
    lies among them.
    """
    bound_s, sleep_s = 0.1, 0.004
    with scripted_target(service_s=sleep_s) as target:
        session = LoadSession(target, RunLimits(10_000.0))
        session.warm_up(1)  # from here on counts the time of the search
        request = MaxQpsRequest(
            latency_bound_ms=bound_s * 1e3, initial_qps=50, tolerance=0.02, time_budget_s=10, min_duration_s=1
        )
        answer = search_max_qps(request, session)
        elapsed_s = session.elapsed_s
    served_s = np.array(json.loads((manifest_folder / SERVED).read_text())) / 1e9
    taken_s = occupied_s(session.runs)
    truths_qps = [highest_rate_qps(part, bound_s) for part in np.array_split(taken_s, PARTS)]

    assert elapsed_s < 1.1 * request.time_budget_s
    assert sleep_s <= np.median(served_s) <= np.median(taken_s) < np.median(served_s) + 0.001
    assert 0.95 * min(truths_qps) < answer.rate_qps < 1.05 * max(truths_qps)
    # its interval is of 95 %: by chance alone it may miss the truth a little
    assert answer.low_qps < 1.02 * max(truths_qps)
    assert answer.high_qps > 0.98 * min(truths_qps)


@HERE_AND_REMOTE
def test_what_fails_and_what_hangs_is_counted_once_and_named(scripted_target, manifest_folder, remote):
    with scripted_target(remote, fails=[3, 4], hangs=[10]) as target:
        session = LoadSession(target, RunLimits(2_000.0))
        session.run(constant(100.0, 20))
        (manifest_folder / "go").touch()
        session.run(constant(100.0, 20))
    run, after = session.runs
    outcomes = LoadSummary.of(run.queries).outcomes

    assert sum(outcomes.values()) == 20
    assert outcomes[Outcome.FAILED] == 2
    # one server in order: what comes after the one that hangs is not answered either
    assert outcomes[Outcome.ANSWERED] == 8
    assert outcomes[Outcome.TIMED_OUT] == 10
    [(reason, count)] = run.reasons.items()
    assert "the script says that this fails" in reason
    assert count == 2
    assert run.queries.repeated == 0
    assert after.queries.count(Outcome.ANSWERED) == 20, "the target goes on once it does not hang any more"
    assert LoadSummary.of(run.queries).late_fraction == pytest.approx(12 / 20)


class AlteredAgent:
    """A remote agent whose answers are altered on their way, but for the first ones."""

    def __init__(self, remote, altered, first=0):
        self._connection, self._altered, self._first = remote.connection, altered, first
        self.description, self.session_id, self.connection = remote.description, remote.session_id, self

    def hold(self):
        return self._connection.hold()

    def begin_predict(self, request):
        return self._connection.begin_predict(request)

    def end_predict(self, call):
        answer = self._connection.end_predict(call)
        self._first -= 1
        if self._first >= 0:
            return answer
        result = decode_response(answer)
        return encode_response(replace(result, **self._altered))

    def read(self, answer):
        return self._connection.read(answer)


@pytest.mark.parametrize(
    ("altered", "outcome", "repeated"),
    [
        ({"input_ids": ("0", "0")}, Outcome.ANSWERED, 3),
        ({"input_ids": ()}, Outcome.FAILED, 0),
        ({"input_ids": ("1",)}, Outcome.FAILED, 0),
    ],
    ids=["twice", "never", "another"],
)
@pytest.mark.parametrize("first", [0, 1], ids=["", "after-a-right-answer"])
def test_an_agent_that_answers_twice_or_not_is_counted_once_for_each_query(
    start_agent, altered, outcome, repeated, first
):
    """What follows a right answer is read when the run is over."""
    with (
        open_remote_agent(start_agent().address, "Echo") as remote,
        RemoteTarget(AlteredAgent(remote, altered, first), ONE) as target,
    ):
        session = LoadSession(target, RunLimits(30_000.0))
        session.run(constant(20.0, first + 3))
    [run] = session.runs

    assert run.queries.outcome.tolist() == [Outcome.ANSWERED] * first + [outcome] * 3
    assert run.queries.repeated == repeated
    failed = {} if outcome is Outcome.ANSWERED else {"the agent gave no answer for the query": 3}
    assert run.reasons == failed
    evaluation = make_evaluation(measurement=LoadMeasurement(LoadOptions("constant", 100.0), run, 0))
    stored = evaluation_from_json(evaluation_to_json(evaluation))
    assert measures(stored, LoadMeasurement)
    shown = "\n".join(value for _, value in kind_of(stored).summary(stored))
    assert stored.measurement.run.queries.repeated == repeated
    assert ("3 more answers for queries that had one" in shown) == bool(repeated)
