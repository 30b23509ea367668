"""A language model in this process under load; the engine has a model whose steps wait for a permit."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager

import numpy as np
import pytest
from numpy.typing import NDArray

from inferometer.agent.generation.engine import Engine
from inferometer.agent.generation.tokenizers import FIRST_BYTE, ByteTokenizer
from inferometer.agent.hardware.environment import FrameworkDetails
from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.session import describe_unloaded
from inferometer.evaluators.load.local_streams import LocalGeneration
from inferometer.evaluators.load.streams import UNKNOWN, ChunkKind, Prompt
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.errors import InputError

WAIT_S = 10.0
TEXT = "año"  # of four tokens, two of which are one character


class Stepwise:
    """A model that repeats ``TEXT``; each step after the prefill waits for a permit."""

    vocabulary_size = FIRST_BYTE + 256
    context_length = 64
    end_tokens: frozenset[int] = frozenset()

    def __init__(self) -> None:
        self.permits = threading.Semaphore(0)
        self.rows: list[int] = []

    def prefill(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        self.rows.append(0)
        return self._logits(0)

    def step(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        assert self.permits.acquire(timeout=3 * WAIT_S)
        self.rows = [row + 1 for row in self.rows]
        return np.stack([self._logits(row) for row in self.rows])

    def remove(self, row: int) -> None:
        last = self.rows.pop()
        if row < len(self.rows):
            self.rows[row] = last

    def details(self) -> FrameworkDetails:
        return FrameworkDetails()

    def close(self) -> None:
        pass

    def _logits(self, place: int) -> NDArray[np.float32]:
        tokens = ByteTokenizer().encode(TEXT)
        logits = np.zeros(self.vocabulary_size, np.float32)
        logits[tokens[place % len(tokens)]] = 1
        return logits


class Log:
    """Receives outcomes."""

    def __init__(self) -> None:
        self.outcomes: dict[int, tuple[int, str]] = {}
        self.came = threading.Semaphore(0)

    def answered(self, query: int, done_ns: int, **_: int) -> None:
        self.outcomes[query] = (done_ns, "")
        self.came.release()

    def failed(self, query: int, done_ns: int, reason: str) -> None:
        self.outcomes[query] = (done_ns, reason)
        self.came.release()


@contextmanager
def opened(size: int = 2) -> Iterator[tuple[LocalGeneration, Stepwise]]:
    model = Stepwise()
    manifest = Catalog().find_model("DigitsCNN", None, Registry().versions)
    engine = Engine(model, ByteTokenizer(), "stepwise", max_batch_size=size)
    description = describe_unloaded(manifest, Registry())
    with closing(LocalGeneration(engine, description)) as system:
        yield system, model
        model.permits.release(1000)  # so that the engine's thread ends


def text(content: str, tokens: int = 4, **more: object) -> Prompt:
    return Prompt(content, tokens, chat=False, **more)  # type: ignore[arg-type]


def waited(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_each_piece_is_a_chunk_with_its_time_and_tokens_are_the_engines() -> None:
    with opened() as (system, model):
        target = system.target([text("abc"), text("xy", 2)], timeout_s=WAIT_S, text=True)
        log, began_ns = Log(), time.perf_counter_ns()
        target.begin(log)
        target.submit(0)
        waited(lambda: bool(target.answer(0).chunks))
        between_ns = time.perf_counter_ns()
        target.submit(1)
        model.permits.release(10)
        assert all(log.came.acquire(timeout=WAIT_S) for _ in range(2))
        first, second, missing = map(target.answer, range(3))
        target.close()

    assert (first.text, first.finish, first.error) == (TEXT, "length", "")
    assert [chunk[1:] for chunk in first.chunks] == [(ChunkKind.TEXT, 1)] * 3
    assert (first.input_tokens, first.output_tokens) == (3, 4)
    assert (second.input_tokens, second.output_tokens, second.text) == (2, 2, "a\N{REPLACEMENT CHARACTER}")
    times_ns = [chunk[0] for chunk in first.chunks]
    assert began_ns < times_ns[0] < between_ns < times_ns[1] < times_ns[2]
    assert (first.first_byte_ns, first.last_byte_ns) == (times_ns[0], times_ns[-1])
    assert log.outcomes[0] == (times_ns[-1], "")
    assert (missing.output_tokens, missing.chunks) == (UNKNOWN, [])


def test_a_run_that_ends_cancels_its_requests_and_reports_them_to_nobody() -> None:
    interval_s = sys.getswitchinterval()
    with opened() as (system, model):
        target = system.target([text("abc")], timeout_s=WAIT_S, text=False)
        log, later = Log(), Log()
        target.begin(log)
        assert sys.getswitchinterval() < interval_s
        target.submit(0)
        waited(lambda: bool(target.answer(0).chunks))
        target.end(0.0)
        cut = target.answer(0)
        assert sys.getswitchinterval() == interval_s
        model.permits.release()
        waited(lambda: not model.rows)  # of the three steps that the answer lacks, one was taken
        target.begin(later)
        model.permits.release(10)
        target.submit(0)
        assert later.came.acquire(timeout=WAIT_S)
        target.end(WAIT_S)

    assert log.outcomes == {}
    assert later.outcomes[0][1] == ""
    assert (len(cut.chunks), cut.output_tokens, cut.error) == (1, UNKNOWN, "")


def test_a_request_that_has_timed_out_makes_room_in_the_engine() -> None:
    with opened(size=1) as (system, model):
        target = system.target([text("abc", 60)], timeout_s=-1.0, text=False)  # with its grace, at once
        log = Log()
        target.begin(log)
        target.submit(0)
        assert log.came.acquire(timeout=WAIT_S)
        model.permits.release()
        waited(lambda: not model.rows)
        target.end(WAIT_S)

    assert log.outcomes[0][1] == "no answer within the timeout"


def test_what_the_engine_refuses_fails_with_its_reason() -> None:
    with opened() as (system, _):
        target = system.target([text("abc", 64)], timeout_s=WAIT_S, text=False)
        log = Log()
        target.begin(log)
        target.submit(0)
        target.end(WAIT_S)
        with pytest.raises(InputError, match="the prompt has 3 tokens and 64 to generate, but the context"):
            system.ask(text("abc", 64))

    assert "but the context of model stepwise has 64" in log.outcomes[0][1]
    assert target.answer(0).error == log.outcomes[0][1]


def test_a_prompt_that_cannot_be_encoded_fails_alone_and_queries_ask_in_turn() -> None:
    with opened() as (system, model):
        prompts = [text("a" * 64 * 65), text("xy", 2), text("xyz", 2)]
        target = system.target(prompts, timeout_s=WAIT_S, text=True)
        log = Log()
        target.begin(log)
        model.permits.release(10)
        for query in range(3):
            target.submit(query)
        target.end(WAIT_S)
        found = [target.answer(query) for query in range(3)]
        target.first += 2  # as after a run of two queries
        target.begin(log)
        target.submit(0)
        target.end(WAIT_S)

    assert [each.input_tokens for each in found] == [UNKNOWN, 2, 3]
    assert "characters; at most" in found[0].error
    assert target.answer(0).input_tokens == 3


def test_a_chat_has_its_template_and_messages_their_parts() -> None:
    parts = [{"type": "text", "text": "o"}, {"type": "text", "text": "ne"}]
    with opened() as (system, _):
        tokens, asked = system.encode(
            Prompt([{"role": "user", "content": parts}], 4, ignore_eos=True, seed=3)
        )
        same_tokens, alike = system.encode(Prompt("one", 4))
        with pytest.raises(InputError, match="a message lacks its role, or its content is no text"):
            system.encode(Prompt([{"role": "user", "content": [{"type": "image_url"}]}], 4))

    assert tokens == same_tokens == ByteTokenizer().encode("user: one\nassistant:")
    assert (asked.ignore_eos, asked.min_tokens, asked.seed) == (True, 4, 3)
    assert (alike.ignore_eos, alike.min_tokens, alike.max_tokens) == (False, 0, 4)
