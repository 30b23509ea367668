"""A measurement of generated answers whose every time is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from inferometer.evaluators.kinds.generation.measurement import GenerationMeasurement
from inferometer.evaluators.load.queries import LoadRun, Outcome, Queries
from inferometer.evaluators.load.streams import Answer, ChunkKind

MS = 1_000_000
BEGAN_NS = 5_000 * MS
TOKENS = 10
CHUNKS = 5


def answer(
    due_ms: float, ttft_ms: float, gap_ms: float, chunks: int = CHUNKS, reasoning: int = 1, **more: Any
) -> Answer:
    """An answer whose chunks of two tokens come at equal distance; its last byte comes 2 ms after them."""
    times_ms = [5_000 + due_ms + ttft_ms + gap_ms * number for number in range(chunks)]
    kinds = [ChunkKind.REASONING if number < reasoning else ChunkKind.TEXT for number in range(chunks)]
    told = {"output_tokens": 2 * chunks, "input_tokens": 64, "finish": "length"} | more
    return Answer(
        first_byte_ns=round((5_000 + due_ms + 1) * MS),
        last_byte_ns=round((times_ms[-1] + 2) * MS) if times_ms else -1,
        chunks=[(round(each * MS), kind, 7) for each, kind in zip(times_ms, kinds, strict=True)],
        **told,
    )


def measured(
    answers: Sequence[Answer],
    outcomes: Sequence[Outcome] = (),
    gap_ms: float = 100,
    lag_ms: float = 0.01,
    cut_ms: float = 0.0,
    **more: Any,
) -> GenerationMeasurement:
    """The measurement of answers that were due at equal distance."""
    count = len(answers)
    due_ns = np.arange(count) * round(gap_ms * MS)
    outcome = np.array(outcomes or [Outcome.ANSWERED] * count, np.int64)
    done_ns = np.array([each.last_byte_ns - BEGAN_NS for each in answers], np.int64)
    unknown = np.full(count, -1, np.int64)
    queries = Queries(
        scheduled_ns=due_ns,
        sent_ns=due_ns + round(lag_ms * MS),
        done_ns=np.where(np.isin(outcome, (Outcome.ANSWERED, Outcome.FAILED)), done_ns, -1),
        outcome=outcome,
        queue_ns=unknown,
        predict_ns=unknown,
        batch_size=np.zeros(count, np.int64),
    )
    run = LoadRun(1e3 / gap_ms, "constant", 3, "sha256:3", queries, round(cut_ms * MS), began_ns=BEGAN_NS)
    given = {"options": {}, "elapsed_ns": count * round(gap_ms * MS), "tokens_by": "the server"}
    return GenerationMeasurement.of(
        run, answers, [2 * CHUNKS + 2] * count, **given | {"prompts": "60 synthetic prompts"} | more
    )


def sixty(**more: Any) -> GenerationMeasurement:
    """Of 60 requests, one fails after two chunks, one times out, and one has no content."""
    answers = [answer(100 * n, 50 + n % 10, 8 + 0.1 * (n % 7)) for n in range(60)]
    answers[20] = answer(2000, 50, 8, chunks=2, error="the stream has an error: overload", finish="")
    answers[30] = Answer()
    answers[40] = Answer(9_001 * MS, 9_060 * MS, [], 64, 1, "stop")
    outcomes = [Outcome.ANSWERED] * 60
    outcomes[30] = Outcome.TIMED_OUT
    bounds = {"ttft_bound_ms": 57.0, "tpot_bound_ms": 3.8}
    return measured(answers, outcomes, cut_ms=600, **{"options": bounds} | more)
