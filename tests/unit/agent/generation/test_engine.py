"""The engine with a model of known tokens: batching, stop strings, limits, cancellation and times."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from inferometer.agent.generation.engine import (
    Engine,
    FinishReason,
    Generation,
    GenerationParameters,
    Piece,
    choose,
)
from inferometer.agent.generation.tokenizers import FIRST_BYTE, ByteTokenizer
from inferometer.agent.tracing.recorder import SpanRecorder, TraceContext, TraceLevel, TraceScope
from inferometer.manifests.errors import AgentError, InputError, PredictionError, QueueFullError

END = 1
WAIT_S = 10.0
ENCODE = ByteTokenizer().encode


class Recital:
    """A model that continues its text from the place that a prompt's last byte says, and can be stopped."""

    vocabulary_size = FIRST_BYTE + 256
    context_length = 64
    end_tokens = frozenset({END})

    def __init__(self, text: str = "", *, fails_at: int = -1) -> None:
        self.text = (*ENCODE(text), END)
        self.rows: list[list[int]] = []
        self.batches: list[int] = []
        self.prompts: list[tuple[int, ...]] = []
        self.fails_at = fails_at
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.closed = False

    def prefill(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        self.prompts.append(tuple(tokens))
        if tokens[-1] == self.fails_at:
            raise RuntimeError("out of order")
        self.rows.append([0])
        return self._logits(0)

    def log_probabilities(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        assert not self.rows
        if tokens[-1] == self.fails_at:
            raise RuntimeError("out of order")
        return -np.array(tokens[1:], np.float32)

    def step(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        self.entered.set()
        assert self.gate.wait(WAIT_S)
        assert len(tokens) == len(self.rows)
        self.batches.append(len(tokens))
        for row in self.rows:
            row[0] += 1
        return np.stack([self._logits(row[0]) for row in self.rows])

    def remove(self, row: int) -> None:
        last = self.rows.pop()
        if row < len(self.rows):
            self.rows[row] = last

    def close(self) -> None:
        self.closed = True

    def _logits(self, place: int) -> NDArray[np.float32]:
        logits = np.zeros(self.vocabulary_size, np.float32)
        logits[self.text[place % len(self.text)]] = 9.0
        return logits


@contextmanager
def engine_of(model: Recital, **options: int) -> Iterator[Engine]:
    freed = threading.Event()
    with closing(Engine(model, ByteTokenizer(), "Recital", **options, on_closed=freed.set)) as engine:
        yield engine
    assert engine.wait_closed(WAIT_S)
    assert model.closed
    assert freed.is_set()
    assert not engine.is_alive


def request(prompt: str = "a", **fields: Any) -> tuple[tuple[int, ...], GenerationParameters]:
    return ENCODE(prompt), GenerationParameters(**{"temperature": 0, **fields})


class Received:
    """Pieces in the order of delivery; ``text`` waits for the last one."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.ended = threading.Event()

    def __call__(self, piece: Piece) -> None:
        self.pieces.append(piece)
        if piece.is_last:
            self.ended.set()

    def text(self) -> str:
        assert self.ended.wait(WAIT_S)
        return "".join(piece.text for piece in self.pieces)


def generated(engine: Engine, prompt: Sequence[int], parameters: GenerationParameters) -> str:
    engine.submit(prompt, parameters, received := Received())
    text = received.text()
    if (error := received.pieces[-1].error) is not None:
        raise error
    return text


STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


@pytest.mark.parametrize(
    ("text", "fields", "wanted", "reason", "tokens"),
    [
        ("hello", {}, "hello", STOP, 6),
        ("hello", {"max_tokens": 3}, "hel", LENGTH, 3),
        ("hello", {"max_tokens": 5}, "hello", LENGTH, 5),
        ("hello", {"max_tokens": 6}, "hello", STOP, 6),
        ("hello", {"ignore_eos": True, "max_tokens": 9}, "hellohel", LENGTH, 9),
        ("hello", {"stop": ["l"]}, "he", STOP, 3),
        ("hello", {"stop": ["lo", "el"]}, "h", STOP, 3),
        ("hello", {"stop": ["low"]}, "hello", STOP, 6),
        ("hello", {"stop": ["low"], "max_tokens": 5}, "hello", LENGTH, 5),
        ("hello", {"stop": ["world"]}, "hello", STOP, 6),
        ("hello", {"stop": ["l"], "min_tokens": 3}, "hel", STOP, 4),
        ("hello", {"stop": ["el"], "min_tokens": 3}, "hello", STOP, 6),
        ("hello", {"stop": ["el", "lo"], "min_tokens": 4}, "hel", STOP, 5),
        ("hello", {"stop": ["he", "hex"], "min_tokens": 2}, "hello", STOP, 6),
        ("aab", {"stop": ["ab"]}, "a", STOP, 3),
        ("né", {"max_tokens": 2}, "n\N{REPLACEMENT CHARACTER}", LENGTH, 2),
        ("né!", {"max_tokens": 3}, "né", LENGTH, 3),
        ("né!", {"stop": ["é!"]}, "n", STOP, 4),
        ("né!", {"stop": ["\N{REPLACEMENT CHARACTER}"]}, "né!", STOP, 5),
        ("", {"max_tokens": 4}, "", STOP, 1),
    ],
)
def test_a_text_ends_where_it_should(
    text: str, fields: dict[str, object], wanted: str, reason: FinishReason, tokens: int
) -> None:
    received = Received()
    with engine_of(Recital(text)) as engine:
        generation = engine.submit(*request(**fields), received)
        assert received.text() == wanted
    assert received.pieces[-1].finish_reason is reason
    assert len(generation.tokens) == tokens


def test_no_piece_has_half_a_character_or_a_part_of_a_stop_string() -> None:
    with engine_of(Recital("né, fin")) as engine:
        engine.submit(*request(stop=["fine"]), received := Received())
        received.text()
    assert [piece.text for piece in received.pieces] == ["n", "é", ",", " ", "fin"]


def test_no_end_is_chosen_before_the_least_number_of_tokens() -> None:
    with engine_of(Recital("hi")) as engine:
        generation = engine.submit(*request(min_tokens=4), received := Received())
        received.text()
    assert len(generation.tokens) == 6  # two bytes, another instead of the end, then the text again
    assert generation.tokens[-1] == END
    assert END not in generation.tokens[:-1]


def test_requests_join_and_leave_between_steps() -> None:
    model = Recital("abcdefgh")
    with engine_of(model, max_batch_size=2) as engine:
        model.gate.clear()
        first, second, third = Received(), Received(), Received()
        engine.submit(*request(max_tokens=3), first)
        assert model.entered.wait(WAIT_S)  # the first is alone in its step
        engine.submit(*request(), second)
        late = engine.submit(*request(max_tokens=4), third)
        model.gate.set()
        assert [each.text() for each in (first, second, third)] == ["abc", "abcdefgh", "abcd"]
    assert model.batches[0] == 1
    assert max(model.batches) == 2
    assert late.spent_ns()["queue"] > 0


def test_a_cancelled_request_is_in_no_further_step() -> None:
    model = Recital("abcdefgh")
    with engine_of(model, max_batch_size=2) as engine:
        model.gate.clear()
        kept, dropped = Received(), Received()
        generation = engine.submit(*request(), dropped)
        assert model.entered.wait(WAIT_S)
        generation.cancel()
        engine.submit(*request(max_tokens=3), kept)
        model.gate.set()
        assert kept.text() == "abc"
    assert model.batches[:3] == [1, 1, 1]
    assert len(generation.tokens) <= 2
    assert [piece.text for piece in dropped.pieces] == ["a"]


def test_a_waiting_request_that_is_cancelled_is_never_prefilled() -> None:
    model = Recital("abc")
    with engine_of(model) as engine:
        model.gate.clear()
        engine.submit(*request(), first := Received())
        assert model.entered.wait(WAIT_S)
        engine.submit(*request("!"), gone := Received()).cancel()
        model.gate.set()
        first.text()
        engine.submit(*request(), last := Received())
        assert last.text() == "abc"
    assert gone.pieces == []
    assert model.prompts == [ENCODE("a")] * 2


def test_a_failing_prefill_concerns_its_request_only() -> None:
    model = Recital("abc", fails_at=ENCODE("!")[0])
    with engine_of(model, max_batch_size=2) as engine:
        with pytest.raises(PredictionError, match="model Recital failed: RuntimeError: out of order"):
            generated(engine, *request("!"))
        assert generated(engine, *request()) == "abc"


def test_a_failing_step_fails_its_batch_and_the_engine_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Recital("abc")
    with engine_of(model, max_batch_size=2) as engine:
        with monkeypatch.context() as patch:
            patch.setattr(model, "step", lambda _: 1 / 0)
            with pytest.raises(PredictionError, match="ZeroDivisionError"):
                generated(engine, *request())
        assert model.rows == []
        assert generated(engine, *request()) == "abc"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_model_that_cannot_remove_a_sequence_closes_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Recital("abc")
    monkeypatch.setattr(model, "remove", lambda _: 1 / 0)
    with engine_of(model) as engine:
        assert generated(engine, *request()) == "abc"
        assert engine.wait_closed(WAIT_S)
        with pytest.raises(AgentError, match="model Recital is closed"):
            engine.submit(*request(), Received())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: request(""), "the prompt has no tokens"),
        (lambda: ((259,), GenerationParameters()), "a token that the model lacks; its tokens are 0 to 258"),
        (lambda: request("x" * 64), "the prompt has 64 tokens, but the context of model Recital has 64"),
        (lambda: request("x" * 60, max_tokens=5), "60 tokens and 5 to generate, but the context"),
    ],
)
def test_wrong_input_is_refused(
    wrong: Callable[[], tuple[tuple[int, ...], GenerationParameters]], message: str
) -> None:
    with engine_of(Recital("abc")) as engine, pytest.raises(InputError, match=message):
        engine.submit(*wrong(), Received())


def test_a_text_may_fill_the_context() -> None:
    with engine_of(Recital("x" * 99)) as engine:
        generation = engine.submit(*request("y" * 60), received := Received())
        assert received.text() == "xxxx"
    assert received.pieces[-1].finish_reason is LENGTH
    assert len(generation.tokens) == 4


def test_too_many_waiting_requests_are_refused() -> None:
    model = Recital("abc")
    with engine_of(model, max_waiting=1) as engine:
        model.gate.clear()
        engine.submit(*request(), Received())
        assert model.entered.wait(WAIT_S)
        engine.submit(*request(), waiting := Received())
        with pytest.raises(QueueFullError, match="has 1 waiting requests, its maximum"):
            engine.submit(*request(), Received())
        model.gate.set()
        assert waiting.text() == "abc"


def test_a_burst_fills_the_batch_and_the_queue() -> None:
    model = Recital("abc")
    with engine_of(model, max_batch_size=2, max_waiting=1) as engine:
        model.gate.clear()
        engine.submit(*request(), Received())
        assert model.entered.wait(WAIT_S)  # one is in a step, and one may join it after that
        received = [Received(), Received()]
        for each in received:
            engine.submit(*request(), each)
        with pytest.raises(QueueFullError):
            engine.submit(*request(), Received())
        model.gate.set()
        assert [each.text() for each in received] == ["abc", "abc"]


def test_closing_ends_what_runs_and_what_waits() -> None:
    model = Recital("abc")
    engine = Engine(model, ByteTokenizer(), "Recital")
    model.gate.clear()
    received = [Received(), Received()]
    for each in received:
        engine.submit(*request(), each)
    assert model.entered.wait(WAIT_S)
    assert engine.busy_ns > 0
    engine.close()
    assert not engine.wait_closed(0.01)  # during a step
    model.gate.set()
    assert engine.wait_closed(WAIT_S)
    assert [type(each.pieces[-1].error) for each in received] == [AgentError, AgentError]
    with pytest.raises(AgentError, match="is closed"):
        engine.submit(*request(), Received())


def test_times_add_up_to_what_the_clock_says() -> None:
    now = iter(range(0, 10_000, 10))
    with closing(Engine(Recital("ab"), ByteTokenizer(), "Recital", clock=lambda: next(now))) as engine:
        generation = engine.submit(*request(), received := Received())
        received.text()
    spent = {"queue": 10, "prefill": 10, "steps": 20, "sampling": 30, "detokenizing": 30}
    assert generation.spent_ns() == spent


def test_each_step_counts_once_for_each_request_in_it() -> None:
    model = Recital("abcdefgh")
    model.gate.clear()
    with engine_of(model, max_batch_size=3) as engine:
        received = [Received() for _ in range(8)]
        begun = [
            engine.submit(*request(max_tokens=1 + 2 * (number % 4)), each)
            for number, each in enumerate(received)
        ]
        model.gate.set()
        assert [len(each.text()) for each in received] == [1, 3, 5, 7] * 2
    times = [list(zip(*each.times_ns, strict=True)) for each in begun]
    assert [len(each) for each in times] == [len(each.tokens) for each in begun]
    steps = [step[:2] for each in times for step in each[1:]]
    assert sum(model.batches) == len(steps)
    assert max(model.batches) == 3
    assert len(set(steps)) == len(model.batches)


@pytest.mark.parametrize(
    ("temperature", "top_p", "shares"),
    [
        (0, 1, (0, 1, 0, 0)),
        (1, 1, (0.1, 0.5, 0.1, 0.3)),
        (0.5, 1, (1 / 36, 25 / 36, 1 / 36, 9 / 36)),
        (1, 0.8, (0, 0.625, 0, 0.375)),
        (1, 0.5, (0, 1, 0, 0)),
        (1, 0.01, (0, 1, 0, 0)),
        (1e-9, 1, (0, 1, 0, 0)),
    ],
)
def test_tokens_are_drawn_with_their_probabilities(
    temperature: float, top_p: float, shares: tuple[float, ...]
) -> None:
    parameters, random = GenerationParameters(temperature=temperature, top_p=top_p), np.random.default_rng(3)
    logits = np.log(np.array([0.1, 0.5, 0.1, 0.3], np.float32))
    counts = np.bincount([choose(logits, parameters, random) for _ in range(4000)], minlength=4) / 4000
    assert counts == pytest.approx(shares, abs=0.03)


def test_a_seed_decides_the_text_whatever_else_runs() -> None:
    sampling = {"temperature": 50.0, "seed": 11}

    def tokens(engine: Engine, beside: int) -> list[int]:
        others = [engine.submit(*request(temperature=50.0), Received()) for _ in range(beside)]
        generation: Generation = engine.submit(
            *request(**sampling, max_tokens=8, ignore_eos=True), received := Received()
        )
        received.text()
        for each in others:
            each.cancel()
        return generation.tokens

    with engine_of(Recital("abcdefgh"), max_batch_size=4) as engine:
        alone = tokens(engine, 0)
        assert tokens(engine, 3) == alone
    assert len(set(alone)) > 4


def test_log_probabilities_wait_for_the_requests_before_them_and_generate_nothing() -> None:
    model = Recital("hello", fails_at=FIRST_BYTE + ord("!"))
    with engine_of(model) as engine:
        model.gate.clear()
        engine.submit(*request(), received := Received())
        assert model.entered.wait(WAIT_S)
        threading.Timer(0.0, model.gate.set).start()
        assert engine.log_probabilities((3, 4, 5)) == [-4, -5]
        assert received.text() == "hello"
        assert engine.log_probabilities((3,)) == []
        with pytest.raises(PredictionError, match="out of order"):
            engine.log_probabilities(ENCODE("a!"))
        with pytest.raises(InputError, match="has 65 tokens, but the context of model Recital has 64"):
            engine.log_probabilities((3,) * 65)
        assert generated(engine, *request()) == "hello"
    with pytest.raises(AgentError, match="closed"):
        engine.log_probabilities((3, 4))


def spans_of(generation: Generation, ended_ns: int) -> list[tuple[str, int]]:
    """The names of its spans, with their durations in ns."""
    recorder = SpanRecorder(TraceContext.new(), TraceLevel.MODEL_TRACE)
    generation.record(TraceScope.top(recorder), "Recital", None, ended_ns)
    return sorted(
        (chunk.kinds[kind].name, duration_ns)
        for chunk in recorder.take()
        for kind, duration_ns in chunk.values("kind", "duration_ns")
    )


def test_the_spans_of_a_request_end_with_it_although_the_engine_goes_on() -> None:
    now = iter(range(0, 10_000, 10))
    with closing(Engine(Recital("abc"), ByteTokenizer(), "Recital", clock=lambda: next(now))) as engine:
        generation = engine.submit(*request(max_tokens=3), received := Received())
        received.text()
    arrived_ns, joined_ns = generation.arrived_ns, generation.joined_ns
    assert joined_ns is not None
    ends = list(generation.times_ns[-1])

    whole, cut, waited = (spans_of(generation, each) for each in (ends[-1], ends[0], joined_ns - 5))

    name, each = "text_completion Recital", ["sample", "detokenize"]
    assert [span for span, _ in whole] == sorted([name, "queue", "prefill", "step", "step", *3 * each])
    assert [span for span, _ in cut] == sorted([name, "queue", "prefill", *each])
    assert waited == [("queue", joined_ns - 5 - arrived_ns), (name, joined_ns - 5 - arrived_ns)]


def test_a_request_that_never_joined_has_spent_no_time() -> None:
    model = Recital("abcdefgh")
    with engine_of(model, max_batch_size=1) as engine:
        model.gate.clear()
        engine.submit(*request(), Received())
        assert model.entered.wait(WAIT_S)
        waiting = engine.submit(*request(), Received())
        waiting.cancel()
        model.gate.set()
    assert set(waiting.spent_ns().values()) == {0}
