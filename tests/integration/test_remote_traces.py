"""Traces of a served agent: its spans are children of the client's, and are returned or exported."""

import time
from contextlib import ExitStack
from contextvars import copy_context
from functools import partial

import grpc
import numpy as np
import pytest
from agent_client import as_stream
from test_remote_agent import tensor_input
from trace_collectors import COLLECTORS, HOST, Seen

from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.session import SessionOptions, open_session, select_model
from inferometer.agent.preprocessing.inputs import Input, Tensor
from inferometer.agent.protocol.status import LEVEL_KEY
from inferometer.agent.server.calls import CallContext, Calls
from inferometer.agent.server.native.call_tracing import ServerTracing
from inferometer.agent.server.native.predict_service import PredictService
from inferometer.agent.server.server import AgentServer, ServerOptions
from inferometer.agent.tracing.exporting import TraceAddress, TraceExport
from inferometer.agent.tracing.recorder import (
    TRACEPARENT_KEY,
    SpanRecorder,
    SpanRole,
    TraceContext,
    TraceLevel,
    TraceScope,
    client_call,
)
from inferometer.client.remote.native.agent import open_remote_agent
from inferometer.client.remote.native.calls import RemoteTrace, measure_offset
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.errors import AgentError, ConfigurationError, InputError
from inferometer.protos.inferometer.v1 import predict_pb2
from inferometer.protos.inferometer.v1.predict_pb2_grpc import PredictServiceStub

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
HOUR_NS = 3_600_000_000_000


def new_scope(level=TraceLevel.MODEL_TRACE):
    recorder = SpanRecorder(TraceContext.new(), level)
    return TraceScope(recorder, recorder.new_id())


def spans_of(scope):
    """Every span as a dictionary."""
    found = []
    for chunk in scope.recorder.chunks():
        for place in range(len(chunk)):
            kind = chunk.kinds[chunk.kind[place]]
            columns = ("span_id", "parent_id", "start_ns", "duration_ns", "batch")
            values = {name: int(getattr(chunk, name)[place]) for name in columns}
            found.append({"name": kind.name, "kind": kind, **values})
    return found


def tree(scope):
    """Every span but those of calls, as ``parent > name batch``, sorted."""
    found = {each["span_id"]: each for each in spans_of(scope)}

    def name_above(each):
        above = found.get(each["parent_id"], {"name": "run", "kind": None})
        return name_above(above) if is_call(above) else above["name"]

    return sorted(f"{name_above(e)} > {e['name']} {e['batch']}" for e in found.values() if not is_call(e))


def is_call(span):
    return span["kind"] is not None and span["kind"].role is not SpanRole.INTERNAL


def batches(*sizes):
    return [[tensor_input(f"{n}.{i}", i) for i in range(size)] for n, size in enumerate(sizes)]


@pytest.fixture(scope="module")
def agent(start_shared_agent):
    return start_shared_agent(max_sessions=1000)


@pytest.fixture
def mean(agent):
    with open_remote_agent(agent.address, "Mean") as remote:
        yield remote


@pytest.fixture(scope="module")
def digits():
    """A served agent with the models that come with the program."""
    with AgentServer(Catalog(), Registry(), ServerOptions(port=0)) as server:
        yield server


def digit_batches():
    rows = np.linspace(0, 1, 3 * 256, dtype=np.float32).reshape(3, 1, 16, 16)
    inputs = [Input(str(number), Tensor(row)) for number, row in enumerate(rows)]
    return [inputs[:2], inputs[2:], inputs[:2]]


@pytest.mark.parametrize("framework", ["PyTorch", "MXNet", "ONNXRuntime"])
@pytest.mark.parametrize("level", [TraceLevel.MODEL_TRACE, TraceLevel.FRAMEWORK_TRACE])
def test_a_served_model_gives_the_same_tree_as_one_in_this_process(digits, framework, level):
    here, there = new_scope(level), new_scope(level)
    manifest = select_model(Catalog(), Registry(), "DigitsCNN", None, framework)
    with open_session(manifest, SessionOptions(), Registry()) as session:
        list(session.predict_batches(digit_batches(), here))
    with open_remote_agent(digits.address, "DigitsCNN", None, framework) as remote:
        list(remote.predict_batches(digit_batches(), there))

    assert tree(there) == tree(here)
    assert len(tree(there)) > (3 + 5) + 3 * 3 * (level is TraceLevel.FRAMEWORK_TRACE)
    assert {each["kind"] for each in spans_of(there)} >= {
        each["kind"] for each in spans_of(here) if each["name"] in {"predict", "predict_step"}
    }


def test_every_span_lies_inside_its_parent_and_after_the_call_began(digits):
    scope = new_scope(TraceLevel.FRAMEWORK_TRACE)
    began_ns = time.time_ns()
    with open_remote_agent(digits.address, "DigitsCNN", None, "PyTorch", trace=scope) as remote:
        list(remote.predict_batches(digit_batches(), scope))
    ended_ns = time.time_ns()

    found = spans_of(scope)
    by_id = {each["span_id"]: each for each in found}
    assert {"load", "predict_step", "predict"} <= {each["name"] for each in found}
    for each in found:
        parent = by_id.get(each["parent_id"], {"start_ns": began_ns, "duration_ns": ended_ns - began_ns})
        assert parent["start_ns"] <= each["start_ns"], each
        assert each["start_ns"] + each["duration_ns"] <= parent["start_ns"] + parent["duration_ns"], each


def test_a_warm_up_keeps_no_layers(digits):
    scope = new_scope(TraceLevel.FRAMEWORK_TRACE)
    with open_remote_agent(digits.address, "DigitsCNN", None, "PyTorch") as remote:
        list(remote.predict_batches(digit_batches(), scope.without_layers()))
    assert {each["name"] for each in spans_of(scope) if not is_call(each)} == {
        "read",
        "preprocess",
        "predict_step",
        "predict",
        "postprocess",
    }


def test_without_a_trace_nothing_is_asked_for_and_nothing_comes(agent, monkeypatch):
    begun = []
    monkeypatch.setattr(ServerTracing, "begin", lambda self, call: begun.append(dict(call.metadata)))
    with open_remote_agent(agent.address, "Mean") as remote:
        list(remote.predict_batches(batches(2, 2)))
    assert begun
    assert not any(TRACEPARENT_KEY in metadata or LEVEL_KEY in metadata for metadata in begun)


def test_batches_have_the_numbers_of_the_client_also_where_one_could_not_be_read(mean):
    scope = new_scope()

    def missing():
        raise InputError("gone: is not there")

    unreadable = [Input("gone", missing)]
    results = list(mean.predict_batches([batches(1)[0], unreadable, batches(2)[0]], scope))

    assert [len(result.input_ids) for result in results] == [1, 0, 2]
    found = spans_of(scope)
    assert sorted(each["batch"] for each in found if each["name"] == "predict") == [0, 2]
    [reading] = [each for each in found if each["kind"].attribute("side") == "client"]
    assert reading["batch"] == 1


def test_more_spans_than_a_chunk_come_while_the_stream_goes_on(mean, monkeypatch):
    for place in ("server.native.call_tracing", "tracing.recorder"):
        monkeypatch.setattr(f"inferometer.agent.{place}.CHUNK_SPANS", 1000)
    scope = new_scope()
    count = 250  # of read, preprocess, predict_step, predict and postprocess each
    assert sum(1 for _ in mean.predict_batches(batches(*[1] * count), scope)) == count
    found = spans_of(scope)
    assert sorted(each["batch"] for each in found if each["name"] == "predict") == list(range(count))
    assert len(found) == 5 * count + 2
    assert scope.recorder.notes == ()


def test_spans_that_an_agent_has_no_room_for_are_counted_and_its_notes_arrive(start_agent, monkeypatch):
    monkeypatch.setattr(
        "inferometer.agent.server.native.call_tracing.SpanRecorder", partial(SpanRecorder, limit=7)
    )
    scope = new_scope(TraceLevel.FRAMEWORK_TRACE)
    with open_remote_agent(start_agent().address, "Mean") as remote:
        list(remote.predict_batches(batches(1, 1), scope))
    assert (len(spans_of(scope)), scope.recorder.dropped) == (7 + 1, 3 + 1)
    assert scope.recorder.notes == ("no layers: Fake has no profiler here",)


def test_the_hardware_is_that_of_the_agent(mean):
    scope = new_scope(TraceLevel.HARDWARE_TRACE)
    list(mean.predict_batches(batches(1), scope))
    samples = [each for each in spans_of(scope) if each["name"] == "hardware_sample"]
    assert samples
    assert all(each["kind"].attribute("process_memory_bytes") > 0 for each in samples)


def test_a_run_that_is_broken_off_is_noted(mean):
    scope = new_scope()
    results = mean.predict_batches(iter(batches(*[1] * 50)), scope)
    next(results)
    results.close()
    [note] = scope.recorder.notes
    assert "was cancelled: some of its spans are missing" in note


def test_an_agent_that_is_lost_leaves_the_spans_of_the_client(spawn_agent):
    agent = spawn_agent()
    scope = new_scope()

    def read_here(number):
        return Input(str(number), lambda: Tensor(np.zeros((1, 4, 4), np.float32)))

    def interrupted():
        yield from ([read_here(number)] for number in range(5))
        agent.process.kill()
        agent.process.wait()
        yield from batches(*[1] * 500)

    with open_remote_agent(agent.address, "Mean") as remote:
        results = remote.predict_batches(interrupted(), scope)
        with pytest.raises(AgentError):
            list(results)
    kept = [each["batch"] for each in spans_of(scope) if each["kind"].attribute("side") == "client"]
    assert kept[:1] == [0]
    assert kept == list(range(len(kept)))
    assert any("was cancelled" in note for note in scope.recorder.notes)


def test_an_agent_of_an_earlier_version_is_noted(start_agent, monkeypatch):
    """One that has no method that tells the time, and does not know of traces."""
    monkeypatch.setattr(ServerTracing, "begin", lambda self, call: None)
    all_methods = PredictService.methods

    def fewer(service):
        return [method for method in all_methods(service) if not method.path.endswith("/Clock")]

    monkeypatch.setattr(PredictService, "methods", fewer)
    server = start_agent()
    scope = new_scope()
    with open_remote_agent(server.address, "Mean", trace=scope) as remote:
        assert len(list(remote.predict_batches(batches(1, 2), scope))) == 2
    notes = " ".join(scope.recorder.notes)
    assert "does not tell the time (UNIMPLEMENTED)" in notes
    assert "returned no spans; is it an older version?" in notes


@pytest.mark.parametrize("ahead_ns", [HOUR_NS, -HOUR_NS])
def test_spans_of_an_agent_whose_clock_is_wrong_are_put_right(agent, monkeypatch, ahead_ns):
    class Skewed(SpanRecorder):
        def __init__(self, *arguments, **others):
            super().__init__(*arguments, wall_clock=lambda: time.time_ns() + ahead_ns, **others)

    monkeypatch.setattr("inferometer.agent.server.native.call_tracing.SpanRecorder", Skewed)
    real = time.time_ns
    monkeypatch.setattr("inferometer.agent.server.native.predict_service.unix_ns", lambda: real() + ahead_ns)
    scope = new_scope()
    began_ns = real()
    with open_remote_agent(agent.address, "Mean", trace=scope) as remote:
        list(remote.predict_batches(batches(2), scope.without_layers()))
        list(remote.predict_batches(batches(2), scope))

    assert [each["name"] for each in spans_of(scope)].count("predict") == 2
    assert all(began_ns <= each["start_ns"] <= real() for each in spans_of(scope))
    [note] = scope.recorder.notes
    assert "the clock of agent" in note
    assert "accurate to within" in note


def test_the_shortest_round_trip_tells_the_offset():
    times = iter([0, 900, 1000, 1010, *(2000 + n * 1000 + late for n in range(6) for late in (0, 500))])
    theirs = iter([70_450, 71_005, *[0] * 6])
    found = measure_offset(lambda: next(theirs), lambda: next(times))
    assert (found.offset_ns, found.uncertainty_ns) == (70_000, 6)
    assert found.shift_ns == 70_000


def test_an_offset_holds_until_another_one_contradicts_it():
    """Round trips of 100 ns, so that each is right to within 51 ns."""

    def measured(scope, ahead_ns, known):
        times = iter(range(0, 100_000, 100))
        middle = iter(range(50, 100_000, 200))
        remote = RemoteTrace(scope, "there", client_call("service/Method", "there", 1))
        scope.recorder.clock, scope.recorder.epoch_offset_ns = lambda: next(times), 0
        return remote.measure_clock(lambda: next(middle) + ahead_ns, known)

    scope = new_scope()
    first = measured(scope, HOUR_NS, None)
    assert (first.offset_ns, first.uncertainty_ns) == (HOUR_NS, 51)
    assert measured(scope, HOUR_NS + 102, first) is first
    assert len(scope.recorder.notes) == 1
    assert measured(scope, 2 * HOUR_NS, first).offset_ns == 2 * HOUR_NS
    assert len(scope.recorder.notes) == 2


def test_the_clock_is_not_asked_for_while_results_are_waited_for(start_agent, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "inferometer.agent.server.native.predict_service.unix_ns", lambda: asked.append(1) or time.time_ns()
    )
    with open_remote_agent(start_agent().address, "Mean") as remote:
        results = remote.predict_batches(batches(1, 1, 1), new_scope())
        for _ in range(3):
            next(results)
            assert not asked
        assert next(results, None) is None
        assert asked


def test_clocks_that_may_be_the_same_are_not_set():
    times = iter(range(0, 10_000, 100))
    found = measure_offset(lambda: 90, lambda: next(times))
    assert found.offset_ns == 40
    assert found.shift_ns == 0


class Called(CallContext):
    """A call without a deadline."""

    def deadline_ns(self, clock):
        return None


def called(metadata):
    """A call with this metadata, which has ended."""
    observe = partial(Calls(None, None).observed, "service/Method", metadata.items(), "", Called, aside=True)
    with copy_context().run(observe) as call:  # which is not the current call of the test
        return call


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"traceparent": "nonsense", LEVEL_KEY: "MODEL_TRACE"},
        {"traceparent": f"00-{'0' * 32}-b7ad6b7169203331-01", LEVEL_KEY: "MODEL_TRACE"},
        {"traceparent": CALLER[:-1] + "0", LEVEL_KEY: "MODEL_TRACE"},
        {"traceparent": CALLER, LEVEL_KEY: "NO_TRACE"},
        {"traceparent": CALLER},
    ],
)
def test_calls_that_ask_for_no_trace_have_none(metadata):
    assert ServerTracing().begin(called(metadata)) is None


def test_a_level_that_there_is_not_is_refused(agent):
    with pytest.raises(ConfigurationError, match="unknown trace level"):
        ServerTracing().begin(called({"traceparent": CALLER, LEVEL_KEY: "DEEP"}))
    with grpc.insecure_channel(agent.address) as channel, pytest.raises(grpc.RpcError) as error:
        PredictServiceStub(channel).Open(
            predict_pb2.OpenRequest(model_name="Mean"),
            metadata=((TRACEPARENT_KEY, CALLER), (LEVEL_KEY, "DEEP")),
        )
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("scheme", COLLECTORS, ids=lambda scheme: scheme.strip(":/") or "grpc")
def test_the_agent_exports_the_spans_of_clients_that_only_send_a_context(start_agent, scheme):
    seen = Seen()
    with ExitStack() as stack:
        port = stack.enter_context(COLLECTORS[scheme](seen))
        export = TraceExport.open(TraceAddress.parse(f"{scheme}{HOST}:{port}"))
        server = start_agent(parts={"tracing": ServerTracing(export)})
        stub = PredictServiceStub(stack.enter_context(grpc.insecure_channel(server.address)))
        context = ((TRACEPARENT_KEY, CALLER),)
        opened = stub.Open(predict_pb2.OpenRequest(model_name="Mean"), metadata=context)
        assert not opened.HasField("trace")
        request = predict_pb2.PredictRequest(
            session_id=opened.session_id,
            inputs=[
                predict_pb2.Input(
                    id="a", tensor={"dtype": "float32", "shape": [1, 4, 4], "content": bytes(64)}
                )
            ],
        )
        answers = [stub.Predict(request, metadata=context)]
        answers += stub.PredictStream(as_stream([request, request]), metadata=context)
        assert len(answers) == 3
        assert not any(answer.HasField("trace") for answer in answers[1:])
        seen.wait_for(lambda: len(seen.spans) == 3 + 1 + 3 * 5 + 2)
        server.stop()

    spans = seen.spans
    assert {span.trace_id for span in spans.values()} == {CALLER[3:35]}
    caller = int(CALLER[36:52], 16)
    calls = {id_: span for id_, span in spans.items() if span.parent_id % 2**64 == caller}
    methods = {f"inferometer.v1.PredictService/{name}" for name in ("Open", "Predict", "PredictStream")}
    assert {span.name for span in calls.values()} == methods
    assert {span.role for span in calls.values()} == {"server"}
    tops = [span for span in spans.values() if span.parent_id in calls]
    names = ["load", "queue", "batch", *["predict_step", "preprocess", "read"] * 3]
    assert sorted(span.name for span in tops) == sorted(names)
    assert sum(span.name == "predict" for span in spans.values()) == 3


@pytest.mark.parametrize("model", ["Mean", "Failing", "Crashing"])
@pytest.mark.parametrize("shape", [[2, 1, 4, 4], [2, 1, 5, 5], [0, 1, 4, 4], []])
@pytest.mark.parametrize("whole", [True, False])
def test_a_context_changes_no_answer(agent, model, shape, whole):
    tensor = {"dtype": "float32", "shape": shape, "content": bytes(4 * int(np.prod(shape)))}

    def answer(stub, **more):
        session_id = stub.Open(predict_pb2.OpenRequest(model_name=model), **more).session_id
        given = {"batch": tensor} if whole else {"inputs": [{"id": "a", "tensor": tensor}]}
        try:
            answered = stub.Predict(predict_pb2.PredictRequest(session_id=session_id, **given), **more)
        except grpc.RpcError as error:
            return error.code(), error.details()
        answered.ClearField("times")
        answered.ClearField("padding")
        return answered

    with grpc.insecure_channel(agent.address) as channel:
        stub = PredictServiceStub(channel)
        traced = ((TRACEPARENT_KEY, CALLER), (LEVEL_KEY, "MODEL_TRACE"))
        assert answer(stub, metadata=traced) == answer(stub)


def test_a_batch_that_is_one_tensor_waits_in_the_queue_as_it_does_untraced(start_agent):
    found = exported(start_agent, "Mean", {"batch": {"dtype": "float32", "shape": [2, 1, 4, 4]}})
    service = "inferometer.v1.PredictService"
    assert sorted(span.name for span in found) == [
        "batch",
        f"{service}/Open",
        f"{service}/Predict",
        "load",
        "predict",
        "queue",
    ]
    assert {span.attributes["inferometer.batch_size"] for span in found if span.name == "predict"} == {2}


def test_the_loading_of_a_model_that_cannot_be_loaded_is_exported(start_agent):
    [load, call] = exported(start_agent, "Mean", None, device={"kind": predict_pb2.DEVICE_KIND_GPU})
    assert load.name == "load"
    assert call.attributes["rpc.grpc.status_code"] == grpc.StatusCode.FAILED_PRECONDITION.value[0]
    assert not call.failed  # the client asked for what there is not


def exported(start_agent, model, request, **options):
    """What a collector has when an agent has opened a model, for one request or in vain, and has stopped."""
    seen = Seen()
    with COLLECTORS[""](seen) as port:
        export = TraceExport.open(TraceAddress.parse(f"{HOST}:{port}"))
        server = start_agent(parts={"tracing": ServerTracing(export)})
        with grpc.insecure_channel(server.address) as channel:
            stub, context = PredictServiceStub(channel), ((TRACEPARENT_KEY, CALLER),)
            opening = predict_pb2.OpenRequest(model_name=model, **options)
            if request is None:
                with pytest.raises(grpc.RpcError):
                    stub.Open(opening, metadata=context)
            else:
                id_ = stub.Open(opening, metadata=context).session_id
                request["batch"]["content"] = bytes(4 * int(np.prod(request["batch"]["shape"])))
                stub.Predict(predict_pb2.PredictRequest(session_id=id_, **request), metadata=context)
        server.stop()
    return list(seen.spans.values())


def test_a_collector_that_refuses_does_not_fail_a_call_and_the_log_says_so(start_agent, caplog):
    export = TraceExport.open(TraceAddress.parse(f"{HOST}:9"))
    server = start_agent(parts={"tracing": ServerTracing(export)})
    with grpc.insecure_channel(server.address) as channel:
        stub = PredictServiceStub(channel)
        stub.Open(predict_pb2.OpenRequest(model_name="Mean"), metadata=((TRACEPARENT_KEY, CALLER),))
    assert server.stop()
    [said] = [record for record in caplog.records if "not delivered" in record.message]
    assert said.levelname == "WARNING"
    assert said.message.startswith("2 of 2 spans")
