"""The parent of several workers, whose processes are threads here, and one answer made of theirs."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from functools import reduce
from multiprocessing import Pipe
from types import SimpleNamespace

import pytest

from inferometer.agent.server import workers
from inferometer.agent.server.joined_answers import CHANGING, JOINED, join
from inferometer.agent.server.server import ServerOptions
from inferometer.agent.server.workers import Link, Workers
from inferometer.manifests.errors import AgentError, InferometerError, MemoryLimitError, UnknownModelError
from inferometer.protos.inference.v2 import grpc_service_pb2 as v2
from inferometer.protos.inferometer.v1 import predict_pb2, registry_pb2

DEADLINE_S = 30
LOAD, UNLOAD = (f"inference.GRPCInferenceService/RepositoryModel{change}" for change in ("Load", "Unload"))
DESCRIBE = "inferometer.v1.RegistryService/Describe"
STATUS = "inferometer.v1.RegistryService/Status"
STATISTICS = "inference.GRPCInferenceService/ModelStatistics"
OFFERED = ("open", "start", "call", "is_in_use", "sessions", "stop")


class Process:
    """A worker in this process, which answers each call with its number until it dies."""

    def __init__(self, number, group):
        self.number, self.group = number, group
        self.connection, theirs = Pipe()
        self.calls, self.steps = [], []
        self.answers = {}
        self.fails = None
        self.process = SimpleNamespace(kill=self.die, join=lambda: None)
        self._theirs = theirs
        self.offers = {name: getattr(self, name) for name in OFFERED}
        self.link = Link(theirs, self.offers, lambda: AgentError("the parent is gone"))

    def open(self):
        if error := self.group.refusal:
            raise error
        self.steps.append("open")

    def start(self):
        self.steps.append("start")
        self.group.starting(self)

    def call(self, path, request, peer):
        self.calls.append((path, request))
        if self.fails is not None:
            raise self.fails
        return self.answers.get(path, b"%d" % self.number)

    def is_in_use(self):
        return True

    def sessions(self):
        return self.number

    def stop(self, in_use):
        self.steps.append(f"stop {in_use}")
        self.link.ask("in_step", DEADLINE_S).result(DEADLINE_S)
        self.steps.append("stopped")
        return self.number != 3

    def die(self):
        with socket.socket(fileno=os.dup(self._theirs.fileno())) as end:
            end.shutdown(socket.SHUT_RDWR)

    def early_end(self, _):
        return f"worker {self.number} died"


class Group:
    """Workers and their processes, in the order in which they began."""

    def __init__(self, count):
        self.refusal = None
        self.starting = lambda process: None
        self.processes = []
        self.began = threading.Condition()
        self.workers = Workers(ServerOptions(port=0, grace_s=1.0), count, self._begin)

    def _begin(self, number, _):
        process = Process(number, self)
        with self.began:
            self.processes.append(process)
            self.began.notify_all()
        return process

    def wait(self, condition):
        with self.began:
            assert self.began.wait_for(condition, DEADLINE_S)

    def call(self, process, path, model=""):
        return process.link.ask("everywhere", path, b"given", "peer", model).result(DEADLINE_S)


@pytest.fixture
def group():
    found = Group(3)
    found.workers.start()
    found.processes.sort(key=lambda process: process.number)
    found.workers._live.sort(key=lambda member: member.number)
    yield found
    found.workers._end()


def test_all_workers_open_and_start(group):
    assert [process.steps for process in group.processes] == [["open", "start"]] * 3
    assert group.workers.load().sessions == 6


def test_error_of_a_worker_that_cannot_open_is_that_of_the_start():
    group = Group(2)
    group.refusal = UnknownModelError("no such model")
    with pytest.raises(UnknownModelError, match="no such model"):
        group.workers.start()


def test_a_reading_call_reaches_all_and_a_change_reaches_its_origin_first(group):
    first, second, third = group.processes
    assert group.call(second, DESCRIBE) == [b"1", b"2", b"3"]
    assert group.call(second, LOAD, "A") == [b"2", b"1", b"3"]
    third.fails = MemoryLimitError("no room")
    with pytest.raises(MemoryLimitError):
        group.call(third, LOAD, "B")
    assert [len(process.calls) for process in group.processes] == [2, 2, 3]
    with pytest.raises(MemoryLimitError):  # also of another worker
        group.call(first, LOAD, "C")


class OddError(InferometerError):
    """As that of a plug-in: it cannot be unpickled."""

    def __init__(self, code, text):
        super().__init__(f"{code}: {text}")


def test_error_that_cannot_be_pickled_has_its_message_and_one_that_is_no_errors_is_named(group):
    group.processes[0].fails = OddError(7, "it is odd")
    with pytest.raises(AgentError, match=r"^7: it is odd$"):
        group.call(group.processes[0], LOAD, "A")
    group.processes[0].fails = ZeroDivisionError("a secret detail")
    with pytest.raises(AgentError, match=r"^call between workers failed: ZeroDivisionError$"):
        group.call(group.processes[0], LOAD, "A")


def test_a_successor_repeats_the_last_change_of_each_model_before_it_listens(group):
    group.call(group.processes[0], UNLOAD, "B")
    group.call(group.processes[0], LOAD, "A")
    group.call(group.processes[0], LOAD, "a@PyTorch")
    group.call(group.processes[0], UNLOAD, " a")
    group.call(group.processes[0], LOAD, "b")
    group.processes[1].die()
    group.wait(lambda: len(group.processes) == 4)
    successor = group.processes[3]
    wait_for(lambda: successor.steps == ["open", "start"])
    assert successor.number == 2
    assert [path for path, _ in successor.calls] == [LOAD, UNLOAD, LOAD]
    wait_for(lambda: group.call(successor, DESCRIBE) == [b"1", b"3", b"2"])


def test_what_clients_of_the_first_worker_load_is_loaded_by_those_that_start_later():
    group = Group(3)
    with ThreadPoolExecutor() as threads:
        first = threading.Event()

        def load(process):
            if not first.is_set():
                first.set()
                loads.append(threads.submit(group.call, process, LOAD, "A"))

        loads, group.starting = [], load
        group.workers.start()
        [answers] = [each.result(DEADLINE_S) for each in loads]
    assert answers
    assert [process.calls for process in group.processes] == [[(LOAD, b"given")]] * 3
    group.workers._end()


def test_a_worker_that_listens_alone_answers_for_all(group):
    group.workers._live.clear()  # as while all of them are replaced
    assert group.call(group.processes[1], DESCRIBE) == [b"2"]


@pytest.mark.parametrize(("steady_s", "expected"), [(60, [0, 1, 2, 4, 8, 16, 30]), (0, [0] * 7)])
def test_workers_that_keep_dying_early_are_replaced_ever_later(
    group, monkeypatch, caplog, steady_s, expected
):
    pauses = []
    monkeypatch.setattr(workers, "_STEADY_S", steady_s)
    monkeypatch.setattr(group.workers._stopping, "wait", pauses.append)
    with caplog.at_level(logging.WARNING, workers.__name__):
        for count in range(4, 11):
            [last] = [each for each in group.processes if each.number == 1][-1:]
            wait_for(lambda last=last: [each.child for each in group.workers._live].count(last) == 1)
            last.die()
            group.wait(lambda count=count: len(group.processes) == count)
    assert pauses == expected
    assert [record.getMessage() for record in caplog.records] == [
        f"worker 1 died; another one starts in {pause_s} s" for pause_s in expected
    ]


def test_no_worker_goes_on_before_all_have_got_as_far(group):
    first, second, third = (process.link for process in group.processes)
    early = [each.ask("in_step", DEADLINE_S) for each in (first, second)]
    assert not wait(early, 0.1).done
    assert not wait([*early, third.ask("in_step", DEADLINE_S)], DEADLINE_S).not_done
    assert first.ask("in_step", 0).result(DEADLINE_S) is None  # however long the others take


def test_all_stop_in_step_and_the_result_is_that_of_all(group):
    group.processes[0].die()
    group.wait(lambda: len(group.processes) == 4)
    wait_for(lambda: len(group.workers._live) == 3)
    assert group.workers.stop() is False  # the third has not finished
    assert [process.steps for process in group.processes[1:]] == [
        ["open", "start", "stop True", "stopped"]
    ] * 3


def test_statistics_are_sums_by_model_and_by_size_of_batch():
    def answer(latest, name, sizes):
        durations = {"count": sum(sizes.values()), "ns": 10}
        stats = [
            v2.InferBatchStatistics(batch_size=size, compute_infer=v2.StatisticDuration(count=n, ns=n))
            for size, n in sizes.items()
        ]
        return v2.ModelStatisticsResponse(
            model_stats=[
                v2.ModelStatistics(
                    name=name,
                    version="1",
                    last_inference=latest,
                    inference_count=sum(size * n for size, n in sizes.items()),
                    execution_count=sum(sizes.values()),
                    inference_stats=v2.InferStatistics(success=v2.StatisticDuration(**durations)),
                    batch_stats=stats,
                )
            ]
        )

    found = reduce(join, [answer(7, "A", {1: 2, 4: 1}), answer(5, "A", {1: 1, 2: 3}), answer(9, "B", {8: 1})])
    whole = answer(7, "A", {1: 3, 2: 3, 4: 1}).model_stats[0]
    whole.inference_stats.success.ns = 20
    assert list(found.model_stats) == [whole, answer(9, "B", {8: 1}).model_stats[0]]


def test_status_is_of_all_and_serving_only_if_each_serves():
    def answer(health, *models):
        loaded = [registry_pb2.LoadedModel(name=name) for name in models]
        return registry_pb2.StatusResponse(
            health=health,
            open_sessions=2,
            resident_memory_bytes=5,
            cpu_ns=3,
            models=loaded,
            troubles=models,
            started_unix_ms=7,
            gpus=["H100"],
        )

    found = join(answer("SERVING", "A"), answer("NOT_SERVING", "A", "B"))
    assert (found.health, found.open_sessions, found.resident_memory_bytes) == ("NOT_SERVING", 4, 10)
    assert found.cpu_ns == 6
    assert [model.name for model in found.models] == list(found.troubles) == ["A", "A", "B"]
    assert (found.started_unix_ms, found.gpus) == (7, ["H100"])


def test_a_worker_that_does_not_answer_delays_neither_the_metrics_nor_the_stop_for_long(group, monkeypatch):
    monkeypatch.setattr(workers, "_SOON_S", 0.05)
    ended = threading.Event()
    pages = [lambda: ["first"], lambda: ["second"], lambda: ended.wait(DEADLINE_S) and ["third"]]
    for process, page in zip(group.processes, pages, strict=True):
        process.offers["metrics"] = page
    began_s = time.monotonic()
    assert group.workers._pages() == [["first"], ["second"], ()]
    [hanging] = [member.asked_page for member in group.workers._live if member.number == 3]
    assert group.workers._pages() == [["first"], ["second"], ()]
    assert [member.asked_page for member in group.workers._live][2] is hanging  # and not asked again
    group.processes[0].offers["is_in_use"] = lambda: ended.wait(DEADLINE_S)
    assert group.workers.stop() is False
    assert time.monotonic() - began_s < DEADLINE_S / 2
    ended.set()


def counting(process, count, *models):
    """Has a worker tell the count of each model, and of its CPU time."""
    stats = [
        v2.ModelStatistics(
            name=name,
            version="1",
            last_inference=count,
            inference_count=count,
            inference_stats=v2.InferStatistics(success=v2.StatisticDuration(count=count, ns=count)),
            batch_stats=[
                v2.InferBatchStatistics(batch_size=1, compute_infer=v2.StatisticDuration(count=count))
            ],
        )
        for name in models
    ]
    loaded = [
        registry_pb2.LoadedModel(name=name, version="1", framework_name="F", predicted_inputs=count)
        for name in models
    ]
    status = registry_pb2.StatusResponse(health="SERVING", open_sessions=1, cpu_ns=count, models=loaded)
    statistics = v2.ModelStatisticsResponse(model_stats=stats)
    process.answers = {STATISTICS: statistics.SerializeToString(), STATUS: status.SerializeToString()}


def counts(group, origin):
    """What the agent tells of each model in its statistics and in its status, its CPU time and sessions."""
    answers = map(v2.ModelStatisticsResponse.FromString, group.call(origin, STATISTICS))
    stats = reduce(join, answers).model_stats
    status = reduce(join, map(registry_pb2.StatusResponse.FromString, group.call(origin, STATUS)))
    found = {}
    for row in stats:
        whole = {row.inference_count, row.inference_stats.success.ns, row.batch_stats[0].compute_infer.count}
        [count] = whole
        found[row.name] = count, sum(each.predicted_inputs for each in status.models if each.name == row.name)
    return found, status.cpu_ns, status.open_sessions


def test_sums_keep_the_counts_of_dead_workers_until_the_model_is_unloaded(group):
    origin = group.processes[0]
    group.call(origin, UNLOAD, "b@f")
    for process, count in zip(group.processes, (1, 10, 100), strict=True):
        counting(process, count, "A", "B")
    whole = {"A": (111, 111), "B": (111, 111)}, 111, 3
    assert counts(group, origin) == counts(group, origin) == whole
    group.starting = lambda process: counting(process, 0, "A", "B")
    for dead in (1, 2):
        group.processes[dead].die()
        wait_for(lambda dead=dead: len(group.processes) == 3 + dead and len(group.workers._live) == 3)
        assert counts(group, origin) == counts(group, origin) == whole
    group.call(origin, LOAD, "A")  # which continues the counts
    assert counts(group, origin) == whole
    group.call(origin, UNLOAD, " a")
    assert counts(group, origin) == ({"A": (1, 1), "B": (111, 111)}, 111, 3)
    group.call(origin, UNLOAD, "b@f")
    assert counts(group, origin) == ({"A": (1, 1), "B": (1, 1)}, 111, 3)


def test_the_counts_of_a_dead_worker_end_with_the_model_even_without_an_unload(group):
    origin, dying, other = group.processes
    for process, models in zip(group.processes, (("A", "B"), ("A", "B", "C"), ("A", "B")), strict=True):
        counting(process, 5, *models)
    assert counts(group, origin)[0] == {"A": (15, 15), "B": (15, 15), "C": (5, 5)}
    group.starting = lambda process: counting(process, 0, "B")
    dying.die()
    wait_for(lambda: len(group.workers._live) == 3 and len(group.processes) == 4)
    assert counts(group, origin)[0] == {"A": (15, 15), "B": (15, 15)}  # it alone had C
    for process in (origin, other):  # which have made room for another model
        counting(process, 7, "B")
    assert counts(group, origin) == ({"B": (19, 19)}, 19, 3)
    for process in (origin, other):
        counting(process, 1, "A", "B", "C")
    assert counts(group, origin)[0] == {"A": (2, 2), "B": (7, 7), "C": (7, 7)}


def test_a_worker_that_dies_while_it_is_asked_counts_as_before(group):
    origin, dying, _ = group.processes
    for process in group.processes:
        counting(process, 5, "A")
    assert counts(group, origin) == ({"A": (15, 15)}, 15, 3)
    assert counts(group, origin) == ({"A": (15, 15)}, 15, 3)
    group.starting = lambda process: counting(process, 0, "A")
    dying.offers["call"] = lambda *_: (dying.die(), threading.Event().wait(0.2))
    assert counts(group, origin)[:2] == ({"A": (15, 15)}, 15)


def test_a_worker_that_does_not_answer_is_not_asked_again_until_it_does(group, monkeypatch):
    monkeypatch.setattr(workers.Workers._answers, "__kwdefaults__", {"within_s": 0.05})
    ended, (origin, _, hanging) = threading.Event(), group.processes
    hanging.offers["call"] = lambda *_: hanging.calls.append(None) or (ended.wait(DEADLINE_S) and b"late")
    for path in (DESCRIBE, STATUS):
        with pytest.raises(AgentError, match=r"^worker 3 has not answered within 0.05 s$"):
            group.call(origin, path)
    for path in (DESCRIBE, STATUS) * 2:
        with pytest.raises(AgentError, match=r"^worker 3 does not answer$"):
            group.call(origin, path)
    assert (len(origin.calls), len(hanging.calls)) == (2, 2)
    assert group.workers.load().sessions == 6  # which it does answer
    ended.set()
    [late] = [member.late for member in group.workers._live if member.late]
    wait(late.values(), DEADLINE_S)
    assert group.call(origin, DESCRIBE) == [b"1", b"2", b"late"]


@pytest.mark.parametrize("stopped", [0, 2])  # the origin, or another one
def test_a_change_waits_for_a_worker_only_while_that_answers_at_all(group, monkeypatch, stopped):
    monkeypatch.setattr(workers, "_SILENT_S", 0.05)
    slow, go_on = group.processes[stopped], threading.Event()
    slow.offers["call"] = lambda *_: go_on.wait(DEADLINE_S) and b"late"
    asked, sessions = threading.Semaphore(0), slow.sessions
    slow.offers["sessions"] = lambda: asked.release() or sessions()
    with ThreadPoolExecutor(1) as threads:
        change = threads.submit(group.call, group.processes[0], LOAD, "A")
        assert all(asked.acquire(timeout=DEADLINE_S) for _ in range(3))  # it loads for longer than that
        go_on.set()
        assert b"late" in change.result(DEADLINE_S)

    go_on.clear()
    slow.offers["sessions"] = lambda: go_on.wait(DEADLINE_S)
    with pytest.raises(AgentError, match=rf"^worker {stopped + 1} has answered nothing for 0.05 s; a change"):
        group.call(group.processes[0], LOAD, "A")
    assert group.processes[1].calls[-1] == (LOAD, b"given") or stopped == 0
    go_on.set()


def test_what_changes_a_worker_changes_all():
    files = (v2, predict_pb2, registry_pb2)
    services = [each for file in files for each in file.DESCRIPTOR.services_by_name.values()]
    paths = {f"{each.full_name}/{method}" for each in services for method in each.methods_by_name}
    assert paths >= JOINED
    changes = ("RepositoryModel", "SystemSharedMemory")
    reads = ("Index", "Status")
    assert {
        path for path in paths if path.rpartition("/")[2].startswith(changes) and not path.endswith(reads)
    } == CHANGING


def wait_for(condition):
    """Waits until the condition holds."""
    pause = threading.Event()
    for _ in range(DEADLINE_S * 200):
        if condition():
            return
        pause.wait(0.005)
    raise TimeoutError
