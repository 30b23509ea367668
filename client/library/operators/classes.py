"""The classes and functions of ``inferometer.operators``, made from the table when each is first used."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable
from functools import cache, partial
from types import ModuleType
from typing import Any, Protocol, TypeAlias

from inferometer.client.library.operators.benchmark import (
    MXNetBenchmark,
    OperatorBenchmark,
    PyTorchBenchmark,
)
from inferometer.client.library.operators.table import BENCHMARKS, Definition, Inputs
from inferometer.manifests.errors import InferometerError

_Maker: TypeAlias = Callable[[], type[OperatorBenchmark]]
_ROOT = "inferometer.operators."
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


def contents(
    module: str, *parts: ModuleType
) -> tuple[list[str], Callable[[str], object], Callable[[], list[str]]]:
    """Returns ``__all__``, ``__getattr__`` and ``__dir__`` of a module of ``inferometer.operators``.

    Args:
        module: Its full name, such as ``inferometer.operators.mxnet.nd``.
        parts: Modules whose names it has, too.
    """
    framework = module.removeprefix(_ROOT).partition(".")[0]
    base = MXNetBenchmark if framework == "mxnet" else PyTorchBenchmark
    makers: dict[str, Callable[[], Any]] = {
        name: partial(getattr, part, name) for part in parts for name in part.__all__
    }
    every: list[_Maker] = []
    for path, rows in BENCHMARKS.items():
        place, _, function = f"{_ROOT}{path}".rpartition(".")
        if base is PyTorchBenchmark:
            place, function = module, function.replace("gluon_", "")
        made = {row.name: partial(_made, base, row, place) for row in rows}
        every += made.values()
        if place == module:
            makers |= {**made, function: partial(_run_all, made.values())}
    if module == f"{_ROOT}{framework}":
        makers[f"run_all_{framework}_operator_benchmarks"] = partial(_run_all, every)

    @cache
    def attribute(name: str) -> object:
        if name not in makers:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return makers[name]()

    return sorted(makers), attribute, lambda: sorted({*vars(sys.modules[module]), *makers})


@cache
def _made(base: type[OperatorBenchmark], definition: Definition, module: str) -> type[OperatorBenchmark]:
    """The class of a row in a framework; the same each time."""
    own = {"__doc__": definition.summary, "__module__": module, "definition": definition}
    return type(definition.name, (base,), own)


def _run_all(made: Iterable[_Maker]) -> RunAll:
    """A function that runs all benchmarks of a group."""
    group = [make() for make in made]

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
