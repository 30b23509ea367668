"""A quick model on the event loop: which requests are predicted there, and what comes of them."""

import asyncio
import threading
from contextlib import closing, contextmanager

import numpy as np
import pytest
from served_fakes import LAYER, Caller, Clock, FakeSession, rows, served, wait_for

from inferometer.agent.serving.batching import MAX_INLINE_US, BatchingOptions
from inferometer.agent.tracing.recorder import SpanRecorder, TraceContext, TraceLevel, TraceScope
from inferometer.manifests.errors import (
    ConfigurationError,
    DeadlineError,
    PredictionError,
    RequestCancelledError,
    SessionError,
)

ENOUGH = 400
"""Predictions after which it is known how quick a model is."""
SLOW_NS = 1_000_000_000


class AnySession(FakeSession):
    """A model for any thread, which takes no time."""

    def __init__(self, *, dynamic: bool = False) -> None:
        super().__init__(dynamic=dynamic)
        self.any_thread = True

    @contextmanager
    def traced_batch(self, *_):
        yield None

    @property
    def here(self) -> bool:
        """Whether the last prediction was in the thread of the test, whose loop that is."""
        return self.threads[-1] == threading.current_thread().name


@pytest.fixture
def session():
    return AnySession()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def make(session, clock):
    """Makes the served model, which has proved how quick it is, and closes it in the end."""
    made = []

    def model(**options):
        made.append(served(session, clock, **options))
        ask(made[-1], *[rows(1)] * ENOUGH)
        return made[-1]

    yield model
    session.go.set()
    for each in made:
        each.close()
        assert each.wait_closed(20)


def ask(model, *batches, **limits):
    """Asks one after the other on an event loop, and returns the last answer."""

    async def run():
        for batch in batches:
            answer = await model.infer_async({LAYER: batch}, **limits)
        return answer

    return asyncio.run(asyncio.wait_for(run(), 20))


def is_back(model, session):
    """Whether the model is predicted on the loop again, once its thread has let it go."""

    def is_here():
        ask(model, rows(1))
        return session.here

    wait_for(is_here)
    return True


@pytest.mark.parametrize("options", [{}, {"max_batch_size": 4}, {"priority_levels": 2}])
def test_a_quick_model_answers_on_the_loop_what_it_answers_in_its_thread(make, session, options):
    if "priority_levels" in options:
        options["default_priority_level"] = 1
    model = make(**options)
    found = ask(model, rows(3))

    assert session.here
    assert session.threads[0] != session.threads[-1]
    np.testing.assert_array_equal(found.outputs["doubled"], rows(6))
    assert (found.queue.queue_ns, found.queue.batch_size, found.predict_ns) == (0, 1, session.predict_ns)
    assert model.waiting == model.busy_ns == 0


def test_the_statistics_count_it(make, session, clock):
    model = make()
    before = model.statistics.totals
    ask(model, rows(1), rows(2))
    totals = model.statistics.totals

    assert session.here
    assert totals.requests == before.requests + 2 == ENOUGH + 2
    assert (totals.inputs, totals.batches, totals.failures) == (ENOUGH + 2, ENOUGH + 2, 0)
    assert totals.predict_ns == (ENOUGH + 2) * session.predict_ns
    assert totals.queue_ns == 0


@pytest.mark.parametrize(
    "options", [{"inline_predict_us": 0}, {"max_batch_size": 4, "max_queue_delay_ms": 1e-6}]
)
def test_it_does_not_where_that_is_switched_off_or_batches_are_waited_for(session, clock, options):
    session.predict_ns = 0
    model = served(session, **options)
    ask(model, *[rows(1)] * ENOUGH)
    assert not session.here
    model.close()
    assert model.wait_closed(20)


def test_a_model_for_one_thread_stays_there(make, session):
    session.any_thread = False
    make()
    assert len(set(session.threads)) == 1
    assert not session.here


def test_a_model_that_has_become_slow_returns_to_its_thread_until_it_is_quick(make, session):
    model = make()
    session.predict_ns = SLOW_NS
    ask(model, rows(1))
    assert session.here
    ask(model, rows(1))
    assert not session.here

    session.predict_ns = 10
    ask(model, *[rows(1)] * 100)
    assert not session.here  # the mean remembers what took long
    ask(model, *[rows(1)] * ENOUGH)
    assert is_back(model, session)


def test_one_slow_prediction_in_a_hundred_keeps_a_model_in_its_thread(session, clock):
    model = served(session, clock)
    for number in range(20):
        session.predict_ns = SLOW_NS if number else 10
        ask(model, rows(1))
        session.predict_ns = 10
        ask(model, *[rows(1)] * 99)
    assert not session.here
    model.close()
    assert model.wait_closed(20)


def test_requests_of_several_inputs_and_traced_ones_take_the_thread(make, session, clock):
    model = make()
    ask(model, rows(1, 2))
    assert not session.here
    assert is_back(model, session)

    recorder = SpanRecorder(TraceContext.new(), TraceLevel.MODEL_TRACE, clock=clock)
    ask(model, rows(1), trace=TraceScope.top(recorder))
    assert not session.here
    assert is_back(model, session)


def test_a_loop_waits_for_no_other_batch_of_the_model(make, session):
    model = make(max_batch_size=4)
    session.is_free = False  # the batch of a stream is predicted, or an image prepared
    ask(model, rows(1))
    assert not session.here
    session.is_free = True

    session.hold()
    before = len(session.batches)
    held = Caller(model, 5)
    wait_for(lambda: len(session.batches) > before)
    waiting = Caller(model, 6)
    wait_for(lambda: model.waiting == 1)

    async def ask_beside():
        asked = asyncio.ensure_future(model.infer_async({LAYER: rows(7)}))
        while model.waiting < 2:
            await asyncio.sleep(0)
        session.go.set()
        return await asked

    found = asyncio.run(asyncio.wait_for(ask_beside(), 20))
    assert found.outputs["doubled"].tolist() == rows(14).tolist()
    assert session.batches[-1] == rows(6, 7).tolist()  # together, and in their order
    assert (held.numbers, waiting.numbers) == ([10], [12])
    assert not session.here


def test_what_is_late_or_gone_is_not_predicted(make, session, clock):
    model = make()
    before = len(session.batches)
    with pytest.raises(DeadlineError):
        ask(model, rows(1), deadline_ns=clock() - 1)
    with pytest.raises(RequestCancelledError):
        ask(model, rows(1), is_active=lambda: False)
    assert len(session.batches) == before
    assert (model.waiting, model.statistics.totals.failures) == (0, 2)


def test_an_answer_after_the_deadline_is_none(make, session, clock):
    model = make()

    def take_long(batch):
        clock.now_ns += 100
        return {"doubled": batch}

    session.answer = take_long
    with pytest.raises(DeadlineError):
        ask(model, rows(1), deadline_ns=clock() + 50)
    assert session.here


@pytest.mark.parametrize(("value", "error"), [(13, PredictionError), (66, ZeroDivisionError)])
def test_an_error_is_the_callers_and_the_model_goes_on(make, session, value, error):
    model = make()
    with pytest.raises(error):
        ask(model, rows(value))
    assert session.here
    assert ask(model, rows(2)).outputs["doubled"].tolist() == rows(4).tolist()
    assert (model.waiting, model.busy_ns, model.statistics.totals.failures) == (0, 0, 1)


def test_a_closed_model_refuses(make, session):
    model = make()
    model.close()
    with pytest.raises(SessionError, match="was unloaded"):
        ask(model, rows(1))
    assert model.wait_closed(20)


@pytest.mark.parametrize("time_us", [-1, 2 * MAX_INLINE_US, float("nan")])
def test_a_time_that_would_hold_up_every_call_is_refused(time_us):
    with pytest.raises(ConfigurationError, match=r"^inline_predict_us is .*; allowed: 0 to 10000, since"):
        BatchingOptions(inline_predict_us=time_us)


def test_a_model_with_dynamic_axes_stays_in_its_thread():
    session = AnySession(dynamic=True)
    with closing(served(session)) as model:
        ask(model, *[rows(1)] * ENOUGH)
    assert not session.here
