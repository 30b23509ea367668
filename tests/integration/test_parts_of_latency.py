"""Statistics of a real server under load: parts of known lengths, and servers that do not tell them."""

import json
import time
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace

import grpc
import numpy as np
import pytest
from fake_framework import DEADLINE_S, SCRIPT, SERVED, SIDE, mean_scores
from kserve_http_server import running_http
from kserve_server import Served, Tensor, running
from load_runs import latencies
from test_call_traces import exporting

from inferometer.agent.serving.batching import BatchingOptions
from inferometer.agent.serving.served_models import ServingOptions
from inferometer.agent.tracing.recorder import SpanRecorder, TraceContext, TraceLevel, TraceScope
from inferometer.client.remote.connection import statistics_of
from inferometer.client.remote.kserve.opening import ModelChoice, open_kserve
from inferometer.client.remote.native.agent import open_remote_agent
from inferometer.evaluators.load.arrivals import ConstantArrivals, Extent, Schedule
from inferometer.evaluators.load.issuer import RunLimits
from inferometer.evaluators.load.latency_parts import latency_parts
from inferometer.evaluators.load.load_session import LoadSession, LoadTrace, reader_of
from inferometer.evaluators.load.queries import Outcome
from inferometer.evaluators.load.target import PreparedInputs
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.errors import AgentError
from inferometer.protos.inference.v2 import grpc_service_pb2 as pb
from inferometer.protos.inferometer.v1 import registry_pb2

ONE = PreparedInputs.of_batch({"data": np.zeros((1, 1, SIDE, SIDE), np.float32)}, "black")
MS = 1_000_000
COUNT, SERVICE_S = 45, 0.03
DUE_NS = np.arange(COUNT) // 3 * 120 * MS
THREES = Schedule(DUE_NS, "three at a time", 25.0)
"""Of three queries, one waits for none, one for another, and one for two."""


@contextmanager
def loaded(address, folder, model="Scripted", metrics_url="", rate_hz=20.0, trace=None):
    """The target of a model on a server, and a session that reads the server's statistics."""
    with ExitStack() as stack:
        if address.startswith("kserve"):
            system = stack.enter_context(open_kserve(address, Catalog([folder]), ModelChoice(model)))
        else:
            system = stack.enter_context(open_remote_agent(address, model))
        target = stack.enter_context(system.load_target(ONE))
        reader = reader_of(target, metrics_url, rate_hz)
        yield LoadSession(target, RunLimits(10_000.0), trace, reader), reader


def constant(count=40, rate_qps=400.0):
    return Schedule.drawn(ConstantArrivals(), rate_qps, Extent(0.0, count), 0)


def served(**more):
    inputs, outputs = Tensor("pixels", "FP32", (-1, 1, SIDE, SIDE)), Tensor("scores", "FP32", (-1, 3))
    more = {"model": lambda batch: {"scores": mean_scores(batch)}, **more}
    return Served(inputs=(inputs,), outputs=(outputs,), **more)


@pytest.mark.real_time
@pytest.mark.parametrize("form", ["{grpc}", "kserve://{grpc}", "kserve+{http}"])
def test_the_parts_are_as_long_as_the_queue_and_the_model_took(spawn_agent, manifest_folder, form):
    (manifest_folder / SCRIPT).write_text(json.dumps({"service_s": SERVICE_S}))
    agent = spawn_agent()
    address = form.format(grpc=agent.address, http=agent.http_url)
    with loaded(address, manifest_folder) as (session, reader):
        run = session.run(THREES)
    agent.process.terminate()  # it unloads its models then
    agent.process.wait(DEADLINE_S)

    served_s = np.array(json.loads((manifest_folder / SERVED).read_text()))[-COUNT:] / 1e9
    waited_s = latencies(np.diff(DUE_NS, prepend=0) / 1e9, served_s) - served_s
    parts = {(each.source, each.figure): each for each in latency_parts(run)}
    [v2, *_] = run.server
    first_ns = v2.at_ns[v2.at_ns >= run.cut_ns][0]
    expected = {"V2": run.queries.done_ns > first_ns, "answers": run.queries.scheduled_ns >= run.cut_ns}
    assert run.queries.count(Outcome.ANSWERED) == COUNT
    assert reader.notes == {}
    for source, counted in expected.items():
        mean = parts[source, "mean"]
        assert mean.parts_ns["compute"] == pytest.approx(served_s[counted].mean() * 1e9, rel=0.05)
        assert mean.parts_ns["queue"] == pytest.approx(waited_s[counted].mean() * 1e9, rel=0.05)
        assert sum(mean.parts_ns.values()) == pytest.approx(mean.latency_ns)
        assert mean.explained_share >= 0.95, mean
    p90, counted_s = parts["answers", "p90"], np.sort(waited_s[expected["answers"]])
    around = slice(round(0.875 * len(counted_s)), round(0.925 * len(counted_s)) + 1)
    assert p90.parts_ns["queue"] == pytest.approx(counted_s[around].mean() * 1e9, rel=0.05)


class KeptTrace(LoadTrace):
    """Traces every query, and keeps the ids of their calls."""

    def begin(self, target):
        self.sample = super().begin(target)
        return self.sample


@pytest.mark.parametrize("form", ["{grpc}", "kserve://{grpc}", "kserve+{http}"])
def test_the_times_in_the_answers_are_those_of_the_spans_of_the_same_requests(
    start_agent, manifest_folder, form
):
    """Three requests at a time, of which the agent predicts two at once."""
    (manifest_folder / SCRIPT).write_text(json.dumps({"service_s": 0.01}))
    serving = ServingOptions(BatchingOptions(max_batch_size=2, max_queue_delay_ms=1))

    def start(tracing):
        return start_agent(parts={"tracing": tracing}, http_port=0, serving=serving)

    recorder = SpanRecorder(TraceContext.new(), TraceLevel.MODEL_TRACE)
    trace = KeptTrace(TraceScope.top(recorder), 1.0, 0)
    with exporting(start) as agent:
        address = form.format(grpc=agent.server.address, http=agent.server.http_url)
        with loaded(address, manifest_folder, trace=trace) as (session, _):
            run = session.run(Schedule(DUE_NS // 4, "three at a time", 100.0))
        spans = agent.stop()

    calls = {span.parent_id: id_ for id_, span in spans.items() if span.role == "server"}
    below = {(span.parent_id, span.name): (id_, span) for id_, span in spans.items()}
    found, told_ns = [], run.queries.queue_ns + run.queries.batch_ns + run.queries.predict_ns
    for query in range(COUNT):
        call = calls[trace.sample.span_id(query)]
        (_, queue), (batch_id, batch) = below[call, "queue"], below[call, "batch"]
        _, predict = below[batch_id, "predict"]
        assert predict.duration_ns == run.queries.predict_ns[query]
        assert batch.attributes["inferometer.batch_size"] == run.queries.batch_size[query]
        # the rest of the batch's time, which the answer counts too, goes into writing the spans
        assert run.queries.queue_ns[query] <= queue.duration_ns
        assert queue.duration_ns + batch.duration_ns <= told_ns[query]
        found.append((queue.duration_ns, predict.duration_ns, queue.duration_ns + batch.duration_ns))
    of_spans = np.array(found)
    assert np.median(of_spans[:, 2] / told_ns) >= 0.95
    counted = run.queries.scheduled_ns >= run.cut_ns
    by_answers = [each for each in latency_parts(run) if each.source == "answers"]
    assert [each.figure for each in by_answers] == ["mean", "p50", "p90", "p95", "p99"]
    for each in by_answers:
        latency_ns = run.queries.latency_ns
        same = counted & (latency_ns >= each.latencies_ns.min()) & (latency_ns <= each.latencies_ns.max())
        queue_ns, predict_ns, _ = of_spans[same].mean(axis=0)
        assert same.sum() == len(each.latencies_ns)
        assert each.parts_ns["compute"] == pytest.approx(predict_ns)
        assert 0 <= queue_ns - each.parts_ns["queue"] <= each.parts_ns["input"]
        assert sum(each.parts_ns.values()) == pytest.approx(latency_ns[same].mean())
        assert each.explained_share >= 0.95 or "are not explained" in each.missing


def test_an_agent_tells_its_queue_its_memory_and_its_cpu_time(spawn_agent, manifest_folder):
    (manifest_folder / SCRIPT).write_text(json.dumps({"service_s": SERVICE_S}))
    with loaded(spawn_agent().address, manifest_folder) as (session, _):
        run = session.run(THREES)

    v2, status = run.server
    assert (v2.source, status.source) == ("V2", "status")
    assert v2.growth("requests").sum() == pytest.approx(COUNT, abs=3)
    assert status.level("queue_length")[1].max() >= 1
    assert (status.level("memory_bytes")[1] > 2**20).all()
    assert status.level("cpu_cores")[1].mean() > 0
    assert (np.diff(v2.at_ns) > 0).all()
    assert (v2.bound_ns > 0).all()
    assert np.median(v2.bound_ns) < 100 * MS  # one reading may be held up by the machine


def test_the_page_of_an_agents_metrics_is_read_beside_its_statistics(start_agent, manifest_folder):
    agent = start_agent(metrics_port=0)
    with loaded(agent.address, manifest_folder, "Mean", agent.metrics_url) as (session, reader):
        run = session.run(constant())

    assert reader.notes == {}
    page = run.server[-1]
    assert page.source == f"metrics at {agent.metrics_url}"
    assert page.figures["inferences"][-1] == page.figures["executions"][-1] == 40
    assert {"queue_length", "in_flight", "cpu_ns", "memory_bytes"} <= page.figures.keys()


def test_a_server_that_is_restarted_loses_only_the_time_around_that(manifest_folder):
    """Of 5 ms a request, it tells 4: 1 in the queue, 3 to compute; its counters begin anew after 40 of 80."""

    def waits(batch):
        time.sleep(0.005)
        return {"scores": mean_scores(batch)}

    def statistics():
        count = len(model.calls)
        count -= 40 * (count > 40)
        spent = {"success": 5, "queue": 1, "compute_infer": 3}
        each = {name: pb.StatisticDuration(count=count, ns=count * ms * MS) for name, ms in spent.items()}
        return pb.ModelStatistics(name="Mean", version="1", inference_stats=pb.InferStatistics(**each))

    model = served(model=waits, statistics=statistics)
    with running(model) as server, loaded(server.address, manifest_folder, "Mean") as (session, reader):
        run = session.run(constant(80, 100.0))

    [series] = run.server
    [mean] = latency_parts(run)
    assert reader.notes == {}
    assert series.was_reset.sum() == 1
    found = {name: mean.parts_ns[name] / MS for name in ("queue", "input", "compute", "output", "rest")}
    assert found == pytest.approx({"queue": 1, "input": 0, "compute": 3, "output": 0, "rest": 1})
    assert sum(mean.parts_ns.values()) == pytest.approx(mean.latency_ns)
    assert "counters of the server began anew" in mean.missing
    # the larger of the two: on a busy machine, the network's
    causes = ("outside of the queue and the model", "on the network, beyond the round trip")
    assert any(cause in mean.missing for cause in causes)


@pytest.mark.parametrize(
    ("misbehaves", "note"),
    [
        ({}, "has no statistics of Mean"),
        ({"fails": {"ModelStatistics": (grpc.StatusCode.INTERNAL, "oh no")}}, "internal: oh no"),
        ({"holds": {"ModelStatistics"}}, "did not answer in time"),
    ],
    ids=["unknown", "fails", "hangs"],
)
def test_a_server_without_statistics_costs_a_note(manifest_folder, misbehaves, note):
    """Every query is answered, and the run tells what it lacks."""
    model = served(**misbehaves)
    with running(model) as server, loaded(server.address, manifest_folder, "Mean") as (session, reader):
        run = session.run(constant())
        model.release.set()

    assert run.queries.count(Outcome.ANSWERED) == 40
    assert note in reader.notes["V2"]
    assert [each.note for each in run.server] == [reader.notes["V2"]]
    assert list(latency_parts(run)) == []


def test_a_server_over_http_without_statistics_costs_a_note(manifest_folder):
    with (
        running_http(served()) as server,
        loaded(server.address, manifest_folder, "Mean") as (session, reader),
    ):
        run = session.run(constant())

    assert run.queries.count(Outcome.ANSWERED) == 40
    assert "has no statistics of Mean" in reader.notes["V2"]


@pytest.mark.parametrize(
    ("path", "note"), [("/none", "the server answered 404"), ("/v2", "no metric of a server that is known")]
)
def test_a_page_without_metrics_costs_a_note(start_agent, manifest_folder, path, note):
    agent = start_agent(http_port=0)
    url = f"{agent.http_url}{path}"
    with loaded(agent.address, manifest_folder, "Mean", url) as (session, reader):
        session.run(constant())

    assert note in reader.notes[f"metrics at {url}"]


def test_statistics_of_a_lost_server_are_refused_in_one_line(spawn_agent, manifest_folder):
    agent = spawn_agent()
    with open_remote_agent(agent.address, "Mean") as remote, remote.load_target(ONE) as target:
        agent.process.kill()
        agent.process.wait()
        for read in target.statistics_sources().values():
            with pytest.raises(AgentError, match="agent 127"):
                read(1.0)


def test_statistics_are_those_of_the_model_and_not_of_others_with_its_name():
    def model(name, version, count):
        stats = pb.InferStatistics(success=pb.StatisticDuration(count=count, ns=count * MS))
        return pb.ModelStatistics(name=name, version=version, inference_stats=stats)

    several = [model("Net@PyTorch", "1", 1), model("Net@Fake", "1", 2), model("Net@Fake", "2", 4)]
    answer = pb.ModelStatisticsResponse(model_stats=several)

    names = ("Net", "Net@Fake")
    assert statistics_of(answer, "agent a:1", *names, version="1.0")["requests"] == 2
    assert statistics_of(answer, "server a:1", "Net")["requests"] == 7
    with pytest.raises(AgentError, match="agent a:1: has no statistics of Net"):
        statistics_of(answer, "agent a:1", *names, version="3.0")


def test_the_queue_is_that_of_the_measured_framework(start_agent, manifest_folder, monkeypatch):
    waiting = {"Fake": 2, "PyTorch": 5}
    models = [
        registry_pb2.LoadedModel(name="Mean", framework_name=framework, waiting_requests=count)
        for framework, count in waiting.items()
    ]
    status = registry_pb2.StatusResponse(models=models, resident_memory_bytes=7, cpu_ns=9)
    with open_remote_agent(start_agent().address, "Mean") as remote, remote.load_target(ONE) as target:
        monkeypatch.setattr(remote.connection, "registry", SimpleNamespace(Status=lambda *_, **__: status))

        read = target.statistics_sources()["status"]
        assert read(1.0) == {"queue_length": 2, "memory_bytes": 7, "cpu_ns": 9}
        status.cpu_ns = 0  # an older agent does not tell it
        assert read(1.0) == {"queue_length": 2, "memory_bytes": 7}
