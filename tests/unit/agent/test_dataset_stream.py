"""The stream of an evaluation's progress: how often it tells, and whom it runs for."""

from __future__ import annotations

import threading
from types import SimpleNamespace

from agent.server.dataset_stream import DatasetStream

DEADLINE_S = 20.0
SHORTLY_S = 0.05


def responses(runner, *, client_is_there: bool = True, on_response=lambda _: None) -> list[str]:
    """What the stream answers while no time passes: the inputs that are done, or the evaluation."""
    context = SimpleNamespace(add_callback=lambda _: client_is_there)
    stream = DatasetStream(runner, session=None, order=None, clock=lambda: 0.0)
    answers = []
    for response in stream.responses(context):
        answers.append(response.evaluation_json or str(response.progress.done_inputs))
        on_response(answers[-1])
    return answers


def test_progress_is_told_at_intervals_and_at_the_end() -> None:
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


def test_a_client_that_has_gone_already_has_nothing_evaluated() -> None:
    asked = []

    def runner(session, order, on_progress, stop_requested) -> str:
        asked.append(stop_requested())
        return "evaluation"

    responses(runner, client_is_there=False)
    responses(runner, client_is_there=True)
    assert asked == [True, False]
