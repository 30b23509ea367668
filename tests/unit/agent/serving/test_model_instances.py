"""A served model with several instances: they share one queue, predict at the same time and end together."""

import threading

import pytest
from served_fakes import LAYER, Caller, Clock, FakeSession, rows, wait_for

from inferometer.agent.serving.batching import BatchingOptions
from inferometer.agent.serving.served_model import ServedModel
from inferometer.manifests.errors import (
    ArtifactError,
    ConfigurationError,
    HungError,
    InstanceLostError,
    SessionError,
)


class Fleet:
    """A served model and its fake sessions."""

    def __init__(self, instances, clock=None, *, timeout_ns=None, **options):
        self.sessions = [FakeSession()]
        self.closed = []
        self.model = ServedModel(
            self.sessions[0],
            BatchingOptions(instances=instances, **options),
            open_instance=self.open,
            on_closed=lambda: self.closed.append([each.closed for each in self.sessions]),
            predict_timeout_ns=timeout_ns,
            **({"clock": clock} if clock else {}),
        )

    def open(self, number):
        assert number == len(self.sessions)
        self.sessions.append(FakeSession())
        return self.sessions[-1]

    def hold(self):
        for each in self.sessions:
            each.hold()

    def go(self):
        for each in self.sessions:
            each.go.set()

    @property
    def begun(self):
        return [batch for each in self.sessions for batch in each.batches]


@pytest.fixture
def make():
    made = []

    def fleet(*given, **options):
        made.append(Fleet(*given, **options))
        return made[-1]

    yield fleet
    for each in made:
        each.go()
        each.model.close()
        assert each.model.wait_closed(20)
        assert each.closed == [[True] * len(each.sessions)]  # once, after the last one


@pytest.mark.parametrize("max_batch_size", [1, 8])
def test_each_instance_predicts_a_batch_and_a_further_request_waits(make, max_batch_size):
    fleet = make(4, max_batch_size=max_batch_size)
    fleet.hold()
    callers = []
    for value in range(4):
        callers.append(Caller(fleet.model, value))
        wait_for(lambda value=value: len(fleet.begun) == value + 1)
    callers.append(Caller(fleet.model, 4))
    wait_for(lambda: fleet.model.waiting == 1)

    assert [len(each.batches) for each in fleet.sessions] == [1, 1, 1, 1]
    assert len({name for each in fleet.sessions for name in each.threads}) == 4
    fleet.go()
    assert [caller.numbers for caller in callers] == [[2 * value] for value in range(5)]
    assert fleet.model.statistics.totals.requests == 5


def test_a_request_that_did_not_fit_goes_to_an_idle_instance(make):
    fleet = make(2, max_batch_size=3, max_queue_delay_ms=60_000)
    fleet.hold()
    first = Caller(fleet.model, 1, 2)
    wait_for(lambda: fleet.model.waiting == 1)  # it is being assembled
    second = Caller(fleet.model, 3, 4, 5)

    wait_for(lambda: len(fleet.begun) == 2)  # although the instance that took it out of the queue is busy
    fleet.go()
    assert (first.numbers, second.numbers) == ([2, 4], [6, 8, 10])


def test_many_callers_get_each_their_own(make):
    fleet = make(4, max_batch_size=8, max_queue_delay_ms=0.1)
    callers = [Caller(fleet.model, *range(n, n + 1 + n % 3)) for n in range(100, 300)]

    for n, caller in enumerate(callers, start=100):
        assert caller.numbers == [2 * value for value in range(n, n + 1 + n % 3)]
    assert sum(len(batch) for batch in fleet.begun) == sum(1 + n % 3 for n in range(100, 300))


def test_closing_answers_what_waits_and_closes_every_instance(make):
    fleet = make(2)
    fleet.hold()
    callers = [Caller(fleet.model, value) for value in range(5)]
    wait_for(lambda: len(fleet.begun) == 2 and fleet.model.waiting == 3)
    fleet.model.close()
    with pytest.raises(SessionError, match="unloaded"):
        fleet.model.infer({LAYER: rows(9)})
    assert not fleet.closed

    fleet.sessions[0].go.set()  # the other one still predicts
    wait_for(lambda: fleet.sessions[0].closed)
    assert not fleet.model.wait_closed(0)
    fleet.go()
    assert [caller.numbers for caller in callers] == [[2 * value] for value in range(5)]


def test_a_request_waits_for_an_instance_that_does_not_hang(make):
    clock = Clock()
    fleet = make(2, clock, timeout_ns=100)
    fleet.hold()
    first = Caller(fleet.model, 1)
    wait_for(lambda: len(fleet.begun) == 1)
    clock.now_ns += 60
    second = Caller(fleet.model, 2)
    wait_for(lambda: len(fleet.begun) == 2)
    clock.now_ns += 30

    assert fleet.model.busy_ns == 90
    clock.now_ns += 20
    assert isinstance(first.done().error, HungError)
    third = Caller(fleet.model, 3)
    wait_for(lambda: fleet.model.waiting == 1)
    alive = next(each for each in fleet.sessions if each.batches == [[[2, 2]]])
    alive.go.set()
    assert (second.numbers, third.numbers) == ([4], [6])

    alive.hold()
    fourth = Caller(fleet.model, 4)
    wait_for(lambda: len(fleet.begun) == 4)
    fifth = Caller(fleet.model, 5)
    wait_for(lambda: fleet.model.waiting == 1)
    clock.now_ns += 101
    assert isinstance(fourth.done().error, HungError)
    assert isinstance(fifth.done().error, HungError)
    with pytest.raises(HungError):
        fleet.model.infer({LAYER: rows(6)})
    fleet.go()


def test_an_instance_that_waits_for_a_hanging_stream_takes_no_further_request(make, monkeypatch):
    monkeypatch.setattr("inferometer.agent.serving.batch_worker._RETRY_S", 0.001)
    fleet = make(2)
    hung, recovering = fleet.sessions[0], threading.Event()

    def fail(*_):
        recovering.set()
        raise HungError("the prediction under way has run for 5 s")

    hung.answer = hung.recover = fail
    callers = []
    while not recovering.is_set():
        callers.append(Caller(fleet.model, 1).done())
    assert [isinstance(each.error, HungError) for each in callers] == [False] * (len(callers) - 1) + [True]
    begun = len(hung.batches)
    assert [Caller(fleet.model, value).numbers for value in range(12)] == [[2 * n] for n in range(12)]
    assert len(hung.batches) == begun == 1
    hung.recover = lambda: None


def test_a_batch_that_fails_leaves_the_other_instances_alone(make):
    fleet = make(2)
    fleet.hold()
    callers = [Caller(fleet.model, 1) for _ in range(2)]
    wait_for(lambda: all(each.batches for each in fleet.sessions))
    fleet.sessions[0].go.set()  # the other one goes on with its request
    bad = Caller(fleet.model, 66).done()
    assert isinstance(bad.error, ZeroDivisionError)
    assert Caller(fleet.model, 5).numbers == [10]
    wait_for(lambda: sum(caller.is_alive() for caller in callers) == 1)
    fleet.go()
    assert [caller.numbers for caller in callers] == [[2], [2]]


@pytest.mark.parametrize("attempts", [1, 2])
def test_a_lost_instance_fails_its_whole_batch_once_and_is_waited_for(make, monkeypatch, attempts):
    monkeypatch.setattr("inferometer.agent.serving.batch_worker._RETRY_S", 0.001)
    fleet = make(1, max_batch_size=4)
    [session] = fleet.sessions
    recoveries = []

    def recover():
        recoveries.append(len(session.batches))
        assert fleet.model.busy_ns == 0
        if len(recoveries) < attempts:
            raise ArtifactError("the file is gone")

    def lose(batch):
        if (batch == 1).any():
            raise InstanceLostError("the process was killed")
        return {"doubled": batch * 2}

    session.recover, session.answer = recover, lose
    session.hold()
    first = Caller(fleet.model, 0)
    wait_for(lambda: fleet.begun)
    lost = [Caller(fleet.model, value) for value in (1, 2)]
    wait_for(lambda: fleet.model.waiting == 2)
    fleet.go()

    assert first.numbers == [0]
    for caller in lost:
        assert isinstance(caller.done().error, InstanceLostError)
    assert Caller(fleet.model, 3).numbers == [6]
    assert recoveries == [2] * attempts  # neither of the lost requests is predicted again


def test_an_instance_that_cannot_be_opened_closes_the_others():
    sessions = [FakeSession() for _ in range(3)]
    others = iter(sessions[1:])

    def open_instance(_):
        for each in others:
            return each
        raise ArtifactError("the file is gone")

    threads = threading.active_count()
    with pytest.raises(ArtifactError, match="the file is gone"):
        ServedModel(sessions[0], BatchingOptions(instances=4), open_instance=open_instance)
    assert [each.closed for each in sessions] == [True, True, True]
    assert threading.active_count() == threads


def test_several_instances_need_a_way_to_open_them():
    session = FakeSession()
    with pytest.raises(ConfigurationError, match="instances is 2, but this model can have only one"):
        ServedModel(session, BatchingOptions(instances=2))
    assert session.closed


@pytest.mark.parametrize("instances", [0, -1, 65])
def test_wrong_numbers_are_refused(instances):
    with pytest.raises(ConfigurationError, match=f"^instances is {instances}; allowed: 1 to 64$"):
        BatchingOptions(instances=instances)
