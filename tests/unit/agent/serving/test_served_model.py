"""A served model: what is batched, who gets which result, and which requests are not predicted."""

import threading
import time
from contextlib import closing

import numpy as np
import pytest
from served_fakes import LAYER, PREDICT_NS, Caller, Clock, FakeSession, rows, served, wait_for

from inferometer.manifests.errors import (
    DeadlineError,
    InputError,
    PredictionError,
    QueueFullError,
    RequestCancelledError,
    SessionError,
)


@pytest.fixture
def session():
    return FakeSession()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def make(session, clock):
    """Makes the served model, and closes it in the end."""
    made = []

    def model(**options):
        made.append(served(session, clock, **options))
        return made[-1]

    yield model
    session.go.set()
    for each in made:
        each.close()
        assert each.wait_closed(20)
        assert session.closed


def hold_up(model, session):
    """Lets a first request keep the model busy, so that others wait."""
    session.hold()
    before = len(session.batches)
    caller = Caller(model, 0)
    wait_for(lambda: len(session.batches) > before)
    return caller


def waiting(model, session, *requests, **limits):
    """Callers that wait together while the model is busy."""
    first = hold_up(model, session)
    callers = []
    for number, values in enumerate(requests, start=1):
        callers.append(Caller(model, *values, **limits))
        wait_for(lambda number=number: model.waiting == number)
    return first, callers


def test_a_request_alone_is_predicted_as_it_is(make, session):
    found = make(max_batch_size=4).infer({LAYER: rows(1, 2)})

    np.testing.assert_array_equal(found.outputs["doubled"], rows(2, 4))
    assert session.batches == [rows(1, 2).tolist()]


def test_what_waits_is_predicted_together_and_each_gets_its_rows(make, session):
    model = make(max_batch_size=8)
    _, callers = waiting(model, session, (1,), (2, 3), (4,))
    session.go.set()

    assert [caller.numbers for caller in callers] == [[2], [4, 6], [8]]
    assert session.batches[1:] == [rows(1, 2, 3, 4).tolist()]


def test_a_batch_has_no_more_inputs_than_it_may(make, session):
    model = make(max_batch_size=3)
    _, callers = waiting(model, session, (1,), (2, 3), (4,), (5,))
    session.go.set()

    assert [caller.numbers for caller in callers] == [[2], [4, 6], [8], [10]]
    assert [len(batch) for batch in session.batches] == [1, 3, 2]


def test_without_batching_each_request_is_predicted_by_itself_of_whatever_size(make, session):
    model = make()
    _, callers = waiting(model, session, (1,), (2, 3, 4))
    session.go.set()

    assert [caller.numbers for caller in callers] == [[2], [4, 6, 8]]
    assert [len(batch) for batch in session.batches] == [1, 1, 3]


def test_the_times_are_those_of_the_request_and_its_batch(make, session, clock):
    model = make(max_batch_size=8)
    first = hold_up(model, session)
    early = Caller(model, 1)
    wait_for(lambda: model.waiting == 1)
    clock.now_ns += 500
    late = Caller(model, 2, 3)
    wait_for(lambda: model.waiting == 2)
    clock.now_ns += 30
    session.go.set()

    times = [caller.done().answer.queue for caller in (first, early, late)]
    assert [each.queue_ns for each in times] == [0, 530, 30]
    assert [each.batch_size for each in times] == [1, 3, 3]
    assert early.answer.predict_ns == PREDICT_NS


def test_a_request_waits_for_others_no_longer_than_the_delay(session):
    model = served(session, max_batch_size=100, max_queue_delay_ms=1.0)
    with pytest.raises(PredictionError):  # it is answered although the batch is never full
        model.infer({LAYER: rows(13)})
    model.close()
    assert model.wait_closed(20)


def test_a_full_queue_refuses_one_more_and_goes_on(make, session):
    model = make(max_batch_size=8, max_queue=2)
    first, callers = waiting(model, session, (1,), (2,))
    with pytest.raises(QueueFullError, match=r"^model Double 1\.0: its queue of 2 requests is full; try"):
        model.infer({LAYER: rows(3)})
    session.go.set()

    assert [caller.numbers for caller in (first, *callers)] == [[0], [2], [4]]
    assert model.infer({LAYER: rows(5)}).outputs["doubled"].tolist() == [[10, 10]]
    assert model.statistics.totals.failures == 1


def test_a_request_whose_deadline_passed_is_not_predicted(make, session, clock):
    model = make(max_batch_size=8)
    first = hold_up(model, session)
    # a time that is not over before the test moves the clock
    late = Caller(model, 1, deadline_ns=clock.now_ns + 3_600_000_000_000)
    wait_for(lambda: model.waiting == 1)
    other = Caller(model, 2)
    wait_for(lambda: model.waiting == 2)
    clock.now_ns += 3_600_000_000_000
    session.go.set()

    with pytest.raises(DeadlineError, match=r"^model Double 1\.0: the deadline passed"):
        assert late.numbers
    assert (first.numbers, other.numbers) == ([0], [4])
    assert session.batches[1:] == [rows(2).tolist()]
    assert model.statistics.totals.failures == 1


@pytest.fixture
def real_time(session):
    """A served model by the clock of the system."""
    with closing(served(session, max_batch_size=8, max_queue=1)) as model:
        yield model
        session.go.set()
    assert model.wait_closed(20)


def test_a_caller_hears_of_its_deadline_though_the_model_is_busy_and_its_place_is_free(real_time, session):
    model = real_time
    hold_up(model, session)
    with pytest.raises(DeadlineError):
        model.infer({LAYER: rows(1)}, deadline_ns=time.perf_counter_ns() + 1)

    assert model.waiting == 0
    other = Caller(model, 2)
    wait_for(lambda: model.waiting == 1)
    session.go.set()
    assert other.numbers == [4]
    assert session.batches[1:] == [rows(2).tolist()]


def test_a_caller_whose_prediction_has_begun_hears_of_its_deadline(real_time, session):
    session.hold()
    late = Caller(real_time, 1, deadline_ns=time.perf_counter_ns() + 20_000_000)
    with pytest.raises(DeadlineError):
        assert late.numbers

    session.go.set()
    assert real_time.infer({LAYER: rows(2)}).outputs["doubled"].tolist() == [[4, 4]]


def test_requests_of_a_model_with_an_output_for_the_whole_batch_are_predicted_alone(make, session):
    session.answer = lambda batch: {"doubled": batch * 2, "sum": np.asarray(batch.sum())}
    _, callers = waiting(make(max_batch_size=8), session, (2,), (3,))
    session.go.set()
    answers = [caller.done().answer.outputs for caller in callers]
    assert [answer["doubled"].tolist() for answer in answers] == [[[4, 4]], [[6, 6]]]
    assert [answer["sum"].tolist() for answer in answers] == [4, 6]
    assert [len(batch) for batch in session.batches] == [1, 1, 1]


def test_a_request_whose_caller_left_is_not_predicted(make, session):
    model = make(max_batch_size=8)
    here = True
    first = hold_up(model, session)
    gone = Caller(model, 1, is_active=lambda: here)
    wait_for(lambda: model.waiting == 1)
    other = Caller(model, 2)
    wait_for(lambda: model.waiting == 2)
    here = False
    session.go.set()

    with pytest.raises(RequestCancelledError):
        assert gone.numbers
    assert (first.numbers, other.numbers) == ([0], [4])
    assert session.batches[1:] == [rows(2).tolist()]


def test_a_request_whose_caller_left_while_its_batch_was_put_together_is_not_predicted(make, session):
    # the clock stands still: the batch waits until it is full
    model = make(max_batch_size=2, max_queue_delay_ms=60_000)
    here = threading.Event()
    here.set()
    asked = threading.Event()
    gone = Caller(model, 1, is_active=lambda: asked.set() or here.is_set())
    assert asked.wait(20)
    here.clear()
    other = Caller(model, 2)

    assert other.numbers == [4]
    with pytest.raises(RequestCancelledError):
        assert gone.numbers
    assert session.batches == [rows(2).tolist()]


def test_a_batch_that_fails_is_predicted_one_by_one_so_that_only_the_bad_request_fails(make, session):
    model = make(max_batch_size=8)
    _, callers = waiting(model, session, (1,), (13,), (2, 3))
    session.go.set()

    assert callers[0].numbers == [2]
    assert callers[2].numbers == [4, 6]
    with pytest.raises(PredictionError, match=r"^the framework failed on 1$"):
        assert callers[1].numbers
    assert [len(batch) for batch in session.batches] == [1, 4, 1, 1, 2]
    assert callers[0].answer.queue.batch_size == 1
    assert model.statistics.totals.failures == 1


def test_a_fault_of_the_predictor_fails_its_batch_and_not_the_next(make, session):
    model = make(max_batch_size=8)
    _, callers = waiting(model, session, (66,), (1,))
    session.go.set()

    for caller in callers:
        assert isinstance(caller.done().error, ZeroDivisionError)
    assert model.infer({LAYER: rows(5)}).outputs["doubled"].tolist() == [[10, 10]]


@pytest.mark.parametrize(("output", "shape"), [(np.zeros((5, 2)), r"\[5, 2\]"), (np.zeros(0), r"\[0\]")])
def test_an_output_without_a_row_for_each_input_fails_the_request_and_not_the_model(
    make, session, output, shape
):
    model = make(max_batch_size=8)
    session.answer = lambda batch: {"doubled": np.asarray(output)}
    with pytest.raises(PredictionError, match=rf"^output doubled has shape {shape} for a batch of 1 inputs$"):
        model.infer({LAYER: rows(1)})

    session.answer = lambda batch: {"doubled": batch * 2}
    assert model.infer({LAYER: rows(5)}).outputs["doubled"].tolist() == [[10, 10]]


def test_an_output_in_the_memory_of_the_batch_stays_as_it_is(make, session):
    model = make(max_batch_size=8)
    session.answer = lambda batch: {"doubled": batch}
    _, callers = waiting(model, session, (1,), (2,))
    session.go.set()
    kept = [caller.done().answer.outputs["doubled"] for caller in callers]
    _, others = waiting(model, session, (8,), (9,))
    session.go.set()

    assert [other.numbers for other in others] == [[8], [9]]
    assert [array.tolist() for array in kept] == [[[1, 1]], [[2, 2]]]


def test_a_request_that_the_model_cannot_take_is_refused_before_it_waits(make, session):
    with pytest.raises(InputError) as raised:
        make(max_batch_size=2).infer({LAYER: rows(1, 2, 3)})

    assert str(raised.value) == (
        "model Double 1.0: the request has 3 inputs; at most 2 are accepted (--max_batch_size)"
    )
    assert session.batches == []


def test_a_closing_model_answers_what_waits_and_takes_nothing_more(make, session):
    model = make(max_batch_size=8)
    first, callers = waiting(model, session, (1,))
    model.close()
    model.close()
    with pytest.raises(SessionError, match=r"^model Double 1\.0 was unloaded; load it again$"):
        model.infer({LAYER: rows(2)})
    assert not model.wait_closed(0)
    session.go.set()

    assert (first.numbers, callers[0].numbers) == ([0], [2])
    assert model.wait_closed(20)
    assert session.closed


def test_the_statistics_tell_what_was_done(make, session, clock):
    model = make(max_batch_size=8)
    first, callers = waiting(model, session, (1,), (2, 3))
    clock.now_ns += 40
    session.go.set()
    for caller in (first, *callers):
        caller.done()

    totals = model.statistics.totals
    assert (totals.inputs, totals.batches, totals.last_unix_ns // 1_000_000) == (4, 2, 5)
    assert (totals.requests, totals.queue_ns, totals.predict_ns) == (3, 80, 3 * PREDICT_NS)
    assert {size: batch.batches for size, batch in totals.by_size.items()} == {1: 1, 3: 1}


def test_it_tells_for_how_long_a_prediction_has_run(make, session, clock):
    model = make()
    assert model.busy_ns == 0
    first = hold_up(model, session)
    clock.now_ns += 90
    assert model.busy_ns == 90
    session.go.set()
    first.done()
    wait_for(lambda: model.busy_ns == 0)


def test_many_callers_at_once_get_each_their_own(session):
    model = served(session, max_batch_size=16, max_queue_delay_ms=0.1)
    callers = [Caller(model, *range(n, n + 1 + n % 3)) for n in range(100, 300)]

    for n, caller in enumerate(callers, start=100):
        assert caller.numbers == [2 * value for value in range(n, n + 1 + n % 3)]
    assert sum(len(batch) for batch in session.batches) == sum(1 + n % 3 for n in range(100, 300))
    assert max(len(batch) for batch in session.batches) <= 16
    model.close()
    assert model.wait_closed(20)


def test_request_alone_reaches_the_model_without_a_copy():
    session, seen = FakeSession(), []
    session.answer = lambda batch: {"doubled": seen.append(batch) or batch}
    model = served(session, max_batch_size=4)
    batch = rows(1, 2)
    answer = model.infer({LAYER: batch})
    model.close()
    assert seen[0] is batch
    assert answer.outputs["doubled"] is batch


@pytest.mark.parametrize("count", [3, 5000])  # few bytes and many are copied in other ways
def test_model_is_given_aligned_memory_whatever_a_request_has(count):
    session, seen = FakeSession(), []
    session.answer = lambda batch: {"doubled": seen.append(batch) or batch * 2}
    model = served(session, max_batch_size=1)
    wanted = rows(*range(100, 100 + count))
    batch = np.frombuffer(b"x" + wanted.tobytes(), np.uint8)[1:].view(np.float32).reshape(wanted.shape)
    assert not batch.flags.aligned
    answer = model.infer({LAYER: batch})
    model.close()
    assert seen[0].flags.aligned
    np.testing.assert_array_equal(seen[0], wanted)
    np.testing.assert_array_equal(answer.outputs["doubled"], wanted * 2)


def test_requests_of_several_lengths_are_batched_by_length_and_keep_their_order():
    session = FakeSession(dynamic=True)
    with closing(served(session, max_batch_size=4)) as model:
        session.hold()
        blocking = Caller(model, 0)
        wait_for(lambda: len(session.batches) == 1)
        answers = []

        def ask(length, value):
            asked = threading.Thread(
                target=lambda: answers.append(
                    model.infer({LAYER: np.full((1, length), value, np.float32)}).outputs["doubled"].tolist()
                )
            )
            before = model.waiting
            asked.start()
            wait_for(lambda: model.waiting > before)
            return asked

        asking = [ask(*each) for each in [(3, 1), (3, 2), (5, 3), (3, 4)]]
        session.go.set()
        for each in asking:
            each.join(20)
        assert blocking.numbers == [0]
    assert session.batches[1:] == [[[1] * 3, [2] * 3], [[3] * 5], [[4] * 3]]
    assert sorted(answers) == [[[2] * 3], [[4] * 3], [[6] * 5], [[8] * 3]]
