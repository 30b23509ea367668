"""The stream of an evaluation's progress: how often it is sent, and when nothing is evaluated."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

from inferometer.agent.server.native.predict_service import DatasetStream

DEADLINE_S = 20.0
SHORTLY_S = 0.05


def responses(runner, *, client_is_there: bool = True, on_response=lambda _: None) -> list[str]:
    """What the stream answers while no time passes: the inputs that are done, or the evaluation."""

    async def collect() -> list[str]:
        call = SimpleNamespace(is_active=lambda: client_is_there, in_thread=asyncio.to_thread)
        stream = DatasetStream(runner, session=None, order=None, clock=lambda: 0.0)
        answers = []
        async for response in stream.responses(call):
            answers.append(response.evaluation_json or str(response.progress.done_inputs))
            on_response(answers[-1])
        return answers

    return asyncio.run(collect())


def test_progress_is_sent_at_intervals_and_at_the_end() -> None:
    heard = {name: threading.Event() for name in ("1", "2", "3", "evaluation")}

    def runner(session, order, on_progress, stop_requested) -> str:
        on_progress(1, 3)
        assert heard["1"].wait(DEADLINE_S)
        on_progress(2, 3)  # no time has passed
        assert not heard["2"].wait(SHORTLY_S)
        on_progress(3, 3)
        assert heard["3"].wait(DEADLINE_S)
        return "evaluation"

    assert responses(runner, on_response=lambda answer: heard[answer].set()) == ["1", "3", "evaluation"]


def test_nothing_is_evaluated_for_a_client_that_has_gone_already() -> None:
    asked = []

    def runner(session, order, on_progress, stop_requested) -> str:
        asked.append(stop_requested())
        return "evaluation"

    responses(runner, client_is_there=False)
    responses(runner, client_is_there=True)
    assert asked == [True, False]


def test_an_evaluation_that_ends_right_after_its_last_progress_is_answered() -> None:
    async def at_once(work) -> str:
        return work()

    async def collect() -> list[str]:
        def runner(session, order, on_progress, stop_requested) -> str:
            on_progress(3, 3)
            return "evaluation"

        call = SimpleNamespace(is_active=lambda: True, in_thread=at_once)
        stream = DatasetStream(runner, session=None, order=None)
        return [
            response.evaluation_json or str(response.progress.done_inputs)
            async for response in stream.responses(call)
        ]

    assert asyncio.run(asyncio.wait_for(collect(), DEADLINE_S)) == ["3", "evaluation"]
