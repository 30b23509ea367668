"""Steps that are taken in a thread: what is waited for, worked, and raised."""

from __future__ import annotations

import pytest

from agent.server.steps import Steps, Wait, Work, taken


class Given:
    """Is there, or is not, and remembers how long it was waited for."""

    def __init__(self, there: bool) -> None:
        self.there = there
        self.timeouts_ns: list[int | None] = []

    def wait(self, timeout_ns: int | None) -> bool:
        self.timeouts_ns.append(timeout_ns)
        return self.there

    def tell(self, listener: object) -> None:
        raise AssertionError("nobody listens in a thread")


def test_each_step_comes_to_its_result() -> None:
    there, missing = Given(True), Given(False)

    def steps() -> Steps[list[object]]:
        return [(yield Wait(there)), (yield Wait(missing, 5)), (yield Work(lambda: "worked"))]

    assert taken(steps()) == [True, False, "worked"]
    assert (there.timeouts_ns, missing.timeouts_ns) == ([None], [5])


def test_error_of_work_is_raised_in_the_steps_and_comes_through() -> None:
    def steps(mends: bool) -> Steps[str]:
        try:
            yield Work(lambda: 1 / 0)
        except ZeroDivisionError:
            if not mends:
                raise
        return "mended"

    assert taken(steps(True)) == "mended"
    with pytest.raises(ZeroDivisionError):
        taken(steps(False))


def test_no_steps_at_all_are_a_result() -> None:
    def steps() -> Steps[int]:
        yield from ()
        return 7

    assert taken(steps()) == 7
