"""Documents of workloads, searches and mixes; ``load_query`` stores queries in columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import count
from typing import Any, ClassVar

import numpy as np

from inferometer.evaluators.documents import (
    Document,
    Documents,
    Stored,
    checked,
    column_part,
    columns_of,
    fields_of,
    record,
    restored,
    storable,
)
from inferometer.evaluators.evaluation import Evaluation, M
from inferometer.evaluators.kinds.kind import Kind
from inferometer.evaluators.kinds.load.measurement import (
    LoadOptions,
    Method,
    MixMeasurement,
    MlperfResult,
    RateAnswer,
    RateSearchMeasurement,
)
from inferometer.evaluators.load.queries import LATER_COLUMNS, QUERY_COLUMNS, LoadRun, Queries
from inferometer.evaluators.load.server_statistics import ServerSeries

_MOST = 1e12
_APART = {"queries", "reasons", "began_ns", "server"}
_RUN = tuple(field.name for field in fields(LoadRun) if field.name not in _APART)


_RUNS = ("run", "probes", "alone", "together")
"""The fields of measurements with one run, or several."""


class RunsKind(Kind[M]):
    """A kind of measurement that consists of runs, which are numbered in the order of its fields."""

    collections: ClassVar[tuple[str, ...]] = ("load_query",)
    readers: ClassVar[Mapping[str, Callable[[Any], Any]]] = {}
    """What reads the stored form of a kind's own fields, by field; others are plain."""

    def unanswered(self, measurement: M) -> str:
        """Returns the reason why a failed evaluation has no figures."""
        return "no query was answered"

    def unfit(self, measurement: M) -> str:
        """Returns why the measurement cannot be compared; a measurement of one whole, valid run can be."""
        if not isinstance(run := getattr(measurement, "run", None), LoadRun):
            return super().unfit(measurement)
        if run.invalid:
            return f"is INVALID: {run.invalid}; its figures cannot be trusted; run it again"
        again = "its figures cover only part of the run; run it again at a lower rate"
        return f"was stopped: {run.stopped}; {again}" if run.stopped else ""

    def to_documents(self, evaluation: Evaluation[M], save_id: str) -> Documents:
        """Returns the measurement's fields, with its queries in ``load_query``."""
        values = {name: getattr(evaluation.measurement, name) for name in self._names()}
        given = [values[name] for name in values if name in _RUNS]
        runs = [run for each in given for run in ([each] if isinstance(each, LoadRun) else each)]
        queries = [({"run": number}, run.queries) for number, run in enumerate(runs)]
        part = column_part([(own, {n: getattr(each, n) for n in QUERY_COLUMNS}) for own, each in queries])
        return {name: _written(value) for name, value in values.items()}, {"load_query": part}

    def from_documents(self, head: Stored, parts: Mapping[str, Sequence[Stored]]) -> M:
        """Returns the measurement; raises KeyError, TypeError or ValueError if the documents are damaged."""
        stored, number = head["measurement"], count()
        queries: dict[Any, list[Stored]] = {}
        for each in parts["load_query"]:
            queries.setdefault(each["run"], []).append(each)

        def runs(written: Any) -> Any:
            if isinstance(written, Mapping):
                return run_of(written, queries.get(next(number), []))
            return tuple(map(runs, written))

        readers = {**_READERS, **self.readers, **dict.fromkeys(_RUNS, runs)}
        values = {name: readers.get(name, restored)(stored[name]) for name in self._names()}
        found: Any = checked(self._plain_measurement()(**values, elapsed_ns=int(head["elapsed_ns"])))
        if isinstance(found, RateSearchMeasurement) and found.options.latency_bound_ms is None:
            raise ValueError("it searched without a latency bound")
        if isinstance(found, MixMeasurement):
            if not 0 < len(found.alone) == len(found.together):
                raise ValueError(f"its {len(found.alone)} runs alone are not half of the pairs of blocks")
            if found.options.max_duration_s is None:
                raise ValueError("its blocks have no duration")
        measurement: M = found
        return measurement


def _written(value: object) -> Any:
    match value:
        case LoadOptions():
            return options_document(value)
        case LoadRun():
            return run_document(value)
        case MlperfResult():
            return _mlperf_document(value)
        case tuple() | list():
            return [_written(each) for each in value]
    return storable(value)


def run_document(run: LoadRun) -> Document:
    """Returns the part of a run that is stored in the evaluation's own document."""
    document = {name: storable(getattr(run, name)) for name in _RUN} | {
        "reasons": [{"reason": storable(reason), "count": n} for reason, n in run.reasons.items()],
        "query_count": len(run.queries),
        "repeated": run.queries.repeated,
    }
    if run.server:  # earlier versions read none
        document["server"] = [storable(_as_lists(each)) for each in run.server]
    return document


def _as_lists(series: ServerSeries) -> dict[str, Any]:
    figures = {name: values.tolist() for name, values in series.figures.items()}
    columns = {"at_ns": series.at_ns.tolist(), "bound_ns": series.bound_ns.tolist(), "figures": figures}
    return {"source": series.source, "note": series.note, **columns}


def _series(stored: Any) -> ServerSeries:
    given = restored(stored)
    times = {name: np.array(given[name], np.int64) for name in ("at_ns", "bound_ns")}
    figures = {name: np.array(values, np.float64) for name, values in dict(given["figures"]).items()}
    if {each.shape for each in (*times.values(), *figures.values())} != {(len(given["at_ns"]),)}:
        raise ValueError("its statistics of the server have columns of different lengths")
    return checked(ServerSeries(**given | times | {"figures": figures}))


def options_document(options: LoadOptions) -> Document:
    """Returns the options as a document; without what earlier versions lack, if it has its default."""
    document = fields_of(options)
    if not options.further:
        del document["further"]
    if options.instances == 1:
        del document["instances"]
    return document


def options_of(stored: Any) -> LoadOptions:
    """Returns the options stored in a document; raises KeyError, TypeError or ValueError if it is damaged."""
    options = record(LoadOptions, stored)
    if not 0 < options.percentile <= 100:
        raise ValueError(f"its percentile is {options.percentile}")
    if not all(map(_plausible, (options.latency_bound_ms, options.timeout_ms))):
        raise ValueError(f"its bound is {options.latency_bound_ms} ms, its timeout {options.timeout_ms} ms")
    return options


def run_of(stored: Stored, documents: Sequence[Stored]) -> LoadRun:
    """Returns the run stored in a document, with the queries in ``documents``, all of which are of this run.

    Raises:
        KeyError, TypeError, ValueError: The documents are damaged.
    """
    known = [
        name
        for name in QUERY_COLUMNS
        if name not in LATER_COLUMNS or all(name in document for document in documents)
    ]
    columns = columns_of(documents, known, stored["query_count"], "queries of a run")
    run = LoadRun(
        **{name: restored(stored[name]) for name in _RUN},
        reasons={str(restored(reason)): int(count) for reason, count in _pairs(stored["reasons"])},
        queries=Queries(**columns, repeated=int(stored["repeated"])),
        server=tuple(map(_series, stored.get("server", ()))),
    )
    if run.queries.repeated < 0 or min(run.reasons.values(), default=0) < 0:
        raise ValueError("a number of its queries is negative")
    return checked(run)


def _pairs(stored: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Yields documents of two values as pairs. Earlier versions stored pairs; some databases cannot."""
    return (list(each.values()) if isinstance(each, dict) else each for each in stored)


def _mlperf(stored: Any) -> MlperfResult | None:
    if stored is None:
        return None
    found = record(MlperfResult, {**stored, "percentiles_ns": list(_pairs(stored["percentiles_ns"]))})
    if not all(0 <= percent <= 100 for percent, _ in found.percentiles_ns):
        raise ValueError("LoadGen's percentiles are not within 0 and 100 percent")
    return found


def _mlperf_document(result: MlperfResult) -> Document:
    percentiles = [{"percent": percent, "value_ns": value_ns} for percent, value_ns in result.percentiles_ns]
    return fields_of(result) | {"percentiles_ns": percentiles}


def _answer(stored: Any) -> RateAnswer | None:
    if stored is None:
        return None
    stored = restored(stored)
    answer = checked(RateAnswer(**stored | {"method": Method(stored["method"]).value}))
    if not all(map(_plausible, (answer.rate_qps, answer.low_qps, answer.high_qps))):
        raise ValueError("a rate in its answer makes no sense")
    return answer


def _plausible(number: float | None) -> bool:
    """Returns whether a rate or bound is None, or non-negative and small enough to compute with."""
    return number is None or 0 <= number <= _MOST


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "options": options_of,
    "mlperf": _mlperf,
    "answer": _answer,
    "own": _answer,
    "others": lambda stored: tuple(restored(stored)),
}
