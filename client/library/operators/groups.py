"""All benchmarks of a group, one after the other."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Protocol

from inferometer.client.library.operators.benchmark import OperatorBenchmark
from inferometer.client.library.operators.definition import Inputs
from inferometer.manifests.errors import InferometerError

_log = logging.getLogger(__name__)


class RunAll(Protocol):
    """Runs all benchmarks of a group, and prints their results."""

    def __call__(
        self,
        ctx: object = None,
        inputs: Inputs | None = None,
        warmup: int | None = None,
        runs: int | None = None,
    ) -> list[dict[str, float]]:
        """Runs them in order, and prints a line for each as soon as it ends.

        One that fails is logged as a warning with its reason, and the others go on.

        Args:
            ctx: The device; None for the CPU.
            inputs: What differs from the default inputs in all of them, such as ``{"dtype": "float64"}``.
            warmup: Runs before those that count; None for the default of each class.
            runs: Runs that count; None for the default of each class.

        Returns:
            The results of each benchmark in order; empty for one that failed.

        Raises:
            ValueError: An input is unknown to one of them, or invalid; nothing has run then.
        """
        ...


def run_all(benchmarks: Iterable[type[OperatorBenchmark]]) -> RunAll:
    """Returns a function that runs all benchmarks of a group."""
    group = tuple(benchmarks)

    def run(
        ctx: object = None,
        inputs: Inputs | None = None,
        warmup: int | None = None,
        runs: int | None = None,
    ) -> list[dict[str, float]]:
        found = [benchmark(ctx, warmup, runs, inputs) for benchmark in group]
        for benchmark in found:
            try:
                benchmark.run_benchmark()
            except InferometerError as error:
                _log.warning("%s: %s", type(benchmark).__name__, error)
            else:
                benchmark.print_benchmark_results()
        return [benchmark.get_benchmark_results() for benchmark in found]

    names = ", ".join(benchmark.__name__ for benchmark in group)
    run.__doc__ = f"Runs {names}; see ``RunAll``."
    return run
