"""The watch for hanging predictions, with a fake clock."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from inferometer.agent.serving.prediction_watch import PredictionWatch

SECOND = 1_000_000_000


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


class Told:
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.hangs: list[str] = []
        self.predicted_ns: list[tuple[str, int, int]] = []

    def predicted(self, model: str, inputs: int, duration_ns: int) -> None:
        self.predicted_ns.append((model, inputs, duration_ns))

    def prediction_failed(self, model: str, error: BaseException) -> None: ...

    def prediction_hangs(self, model: str) -> None:
        self.hangs.append(model)


def test_a_prediction_hangs_when_its_time_is_over_and_is_told_once() -> None:
    clock, told, fitness = Clock(), Told(), []
    watch = PredictionWatch(10, [told], fitness.append, clock)
    number, began_ns = watch.begin("A")
    watch.begin("B")
    clock.now_ns = 10 * SECOND
    watch.check()
    assert (told.hangs, fitness, bool(watch.trouble)) == ([], [], False)
    watch.end(1, "B", 0, 4)
    clock.now_ns += 1
    watch.check()
    watch.check()
    assert (told.hangs, fitness) == (["A"], [False])
    clock.now_ns = 12 * SECOND
    assert watch.trouble.hanging == (("A", 12 * SECOND, 0),)
    watch.end(number, "A", began_ns, 1)
    assert fitness == [False, True]
    assert not watch.trouble
    assert told.predicted_ns == [("B", 4, 10 * SECOND), ("A", 1, 12 * SECOND)]


def test_it_serves_again_only_when_nothing_hangs_any_more() -> None:
    clock, fitness = Clock(), []
    watch = PredictionWatch(1, on_fitness=fitness.append, clock=clock)
    watch.begin("A")
    watch.begin("B")
    clock.now_ns = 2 * SECOND
    watch.check()
    watch.end(0, "A", 0, 1)
    assert fitness == [False]
    watch.end(1, "B", 0, 1)
    assert fitness == [False, True]


def test_it_serves_as_long_as_an_instance_is_alive() -> None:
    clock, fitness, alive = Clock(), [], {"A": 1}
    watch = PredictionWatch(1, on_fitness=fitness.append, clock=clock, alive_of=lambda model: alive[model])
    predictor: Any = SimpleNamespace(hangs=False)
    number, _ = watch.begin("A", predictor)
    clock.now_ns = SECOND
    watch.check()
    assert not predictor.hangs
    clock.now_ns = 2 * SECOND
    watch.check()
    assert predictor.hangs
    assert (fitness, bool(watch.trouble)) == ([], False)
    assert watch.trouble.hanging == (("A", 2 * SECOND, 1),)

    alive["A"] = 0  # the process of the other one ends
    watch.check()
    assert (fitness, watch.trouble.hanging) == ([False], (("A", 2 * SECOND, 0),))
    alive["A"] = 1  # and starts again
    watch.check()
    assert (fitness, watch.trouble.hanging) == ([False, True], (("A", 2 * SECOND, 1),))
    watch.end(number, "A", 0, 1)
    assert not predictor.hangs
    assert (fitness, watch.trouble.hanging) == ([False, True], ())


class EndsWhenItIsLookedAt(dict[int, tuple[str, int, None]]):
    """The predictions under way, of which each ends as soon as somebody has looked at them all."""

    def __init__(self, watch: PredictionWatch, under_way: dict[int, tuple[str, int, None]]) -> None:
        super().__init__(under_way)
        self._watch = watch

    def items(self) -> Any:
        seen = list(super().items())
        for number, (model, began_ns, _) in seen:
            self._watch.end(number, model, began_ns, 1)
        return seen


def test_prediction_that_ends_while_it_is_looked_at_does_not_hang_for_ever() -> None:
    clock, told, fitness = Clock(), Told(), []
    watch = PredictionWatch(1, [told], fitness.append, clock)
    watch.begin("A")
    clock.now_ns = 2 * SECOND
    watch._under_way = EndsWhenItIsLookedAt(watch, watch._under_way)
    watch.check()
    assert not watch.trouble
    assert (told.hangs, fitness) == ([], [])
    assert told.predicted_ns == [("A", 1, 2 * SECOND)]


def test_without_a_limit_nothing_hangs() -> None:
    clock = Clock()
    watch = PredictionWatch(None, clock=clock)
    watch.begin("A")
    clock.now_ns = 10**6 * SECOND
    watch.check()
    assert not watch.trouble
    watch.start()
    watch.close()
