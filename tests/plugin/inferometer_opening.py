"""A plug-in: a kind of measurement, which opens a model several times and measures how long that takes.

It imports ``inferometer`` and NumPy, and no module of inferometer's folders.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from inferometer import (
    Column,
    DatasetIdentity,
    Evaluation,
    Job,
    JobCallbacks,
    JobResources,
    JobStart,
    Kind,
    Range,
    Report,
    Row,
    RunTimes,
    Status,
    SystemRequest,
    check_options,
    declared,
    describe,
    given_options,
    top_figures,
)

_NS_PER_MS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class OpeningRequest:
    """A model to open several times."""

    system: SystemRequest = field(default_factory=SystemRequest)
    openings: int = declared(5, "How often to open the model.", "N", within=Range(1, 100))
    pause_s: float = declared(0.0, "How long to wait before each time.", "S", within=Range(0, 60))

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, slots=True, eq=False)
class OpeningMeasurement:
    """The times in which a model was opened.

    Attributes:
        times_ns: int64; from the request to the opened model, in nanoseconds.
        elapsed_ns: All of them together, with the pauses.
        options: The options that differ from their defaults.
    """

    kind: ClassVar[str] = "opening"

    times_ns: NDArray[np.int64]
    elapsed_ns: int
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def batch_size(self) -> int:
        """1; nothing is predicted."""
        return 1


class OpeningReport(Report[OpeningMeasurement]):
    """One row for each evaluation: the times of opening."""

    name: ClassVar[str] = "opening"
    summary: ClassVar[str] = "how long models take to open"
    takes = (OpeningMeasurement,)
    columns: ClassVar[tuple[Column, ...]] = (
        Column("id", "id", is_id=True),
        Column("model_name", "model"),
        Column("framework_name", "framework"),
        Column("openings", "openings"),
        Column("opening_ms_p50", "p50 (ms)"),
    )

    def rows(self, evaluations: Sequence[Evaluation[OpeningMeasurement]]) -> Iterator[Row]:
        """Yields one row for each of the ``evaluations``, in their order."""
        for evaluation in evaluations:
            times_ns, described = evaluation.measurement.times_ns, describe(evaluation)
            yield {
                **{key: described[key] for key in ("id", "model_name", "framework_name")},
                "openings": len(times_ns),
                "opening_ms_p50": float(np.median(times_ns)) / _NS_PER_MS,
            }


class OpeningKind(Kind[OpeningMeasurement]):
    """Open a model several times, and measure how long that takes."""

    name = "opening"
    title = "opening"
    phrase = "the opening of a model"
    counted = "openings"
    reports = {OpeningReport: None}
    headlines = ("opening_ms_p50",)
    request = OpeningRequest
    measurement = OpeningMeasurement

    def job(self, request: OpeningRequest) -> Job[Evaluation[OpeningMeasurement]]:
        """Returns the job of a request."""
        name = request.system.model_name
        return Job(partial(_opened, request), name, f"opening {name}", "stopping after this opening")

    def overview(self, measurement: OpeningMeasurement) -> Row:
        """Returns the median."""
        return top_figures(float(np.median(measurement.times_ns)), None)

    def summary(self, evaluation: Evaluation[OpeningMeasurement]) -> Iterator[tuple[str, str]]:
        """Yields the median and the number."""
        times_ms = evaluation.measurement.times_ns / _NS_PER_MS
        yield "opening", f"p50 {np.median(times_ms):.3f}  max {times_ms.max():.3f}  ms, {len(times_ms)} times"

    def unfit(self, measurement: OpeningMeasurement) -> str:
        """Returns nothing: each can be compared."""
        return ""

    def conditions(self, evaluation: Evaluation[OpeningMeasurement]) -> Mapping[str, str]:
        """Returns the options."""
        return {name: str(value) for name, value in evaluation.measurement.options.items()}

    def run_times(self, evaluation: Evaluation[OpeningMeasurement]) -> RunTimes:
        """Returns the times."""
        times_ns = evaluation.measurement.times_ns
        return RunTimes.of_batches(times_ns, np.ones_like(times_ns))


def _opened(
    request: OpeningRequest, resources: JobResources, callbacks: JobCallbacks
) -> Generator[Evaluation[OpeningMeasurement], None, None]:
    created_at, began_ns = datetime.now(timezone.utc), time.perf_counter_ns()
    times_ns: list[int] = []
    for _ in range(request.openings):
        time.sleep(request.pause_s)
        start_ns = time.perf_counter_ns()
        system = resources.open_system(request.system, warm_up=False, notify=callbacks.on_warning, trace=None)
        times_ns.append(time.perf_counter_ns() - start_ns)
        described = system.description
        system.close()
        if len(times_ns) == 1:
            callbacks.on_start(JobStart(described, "nothing", 0, "opening"))
        if callbacks.stop_requested():
            break
    whole = len(times_ns) == request.openings
    yield Evaluation(
        id=str(uuid.uuid4()),
        created_at=created_at,
        status=Status.of(whole=whole, usable=True),
        system=described,
        dataset=DatasetIdentity("none", "nothing", None, None, 0),
        measurement=OpeningMeasurement(
            np.array(times_ns), time.perf_counter_ns() - began_ns, given_options(request)
        ),
    )
