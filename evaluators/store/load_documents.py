"""The load part of an evaluation as documents: the queries are in ``load_query``, in columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluators.loadgen.mlperf_result import MlperfResult, Scenario
from evaluators.loadgen.queries import LATER_COLUMNS, QUERY_COLUMNS, Queries
from evaluators.loadgen.record import LoadKind, LoadOptions, LoadRecord, LoadRun, RateAnswer
from evaluators.store.values import restored, storable

QUERIES_PER_DOCUMENT = 20_000
_RUN = tuple(field.name for field in fields(LoadRun) if field.name not in {"queries", "reasons"})


def load_head(load: LoadRecord) -> dict[str, Any]:
    """Returns what the evaluation's own document holds of its load part."""
    return {
        "options": _fields_of(load.options) | {"kind": load.options.kind.value},
        "answer": _fields_of(load.answer) if load.answer else None,
        "mlperf": _fields_of(load.mlperf) if load.mlperf else None,
        "runs": [
            {name: storable(getattr(run, name)) for name in _RUN}
            | {
                "reasons": [[storable(reason), count] for reason, count in run.reasons.items()],
                "query_count": len(run.queries),
                "repeated": run.queries.repeated,
            }
            for run in load.runs
        ],
    }


def load_documents(load: LoadRecord | None, owner: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the documents of the queries.

    Args:
        load: None gives none.
        owner: ``evaluation_id`` and ``save_id``.
    """
    for number, run in enumerate(load.runs if load else ()):
        for start in range(0, len(run.queries), QUERIES_PER_DOCUMENT):
            part = slice(start, start + QUERIES_PER_DOCUMENT)
            columns = {name: getattr(run.queries, name)[part].tolist() for name in QUERY_COLUMNS}
            yield {
                "_id": _document_id(owner["save_id"], number, start // QUERIES_PER_DOCUMENT),
                **owner,
                "run": number,
                **columns,
            }


def load_document_ids(head: Mapping[str, Any]) -> list[str]:
    """Returns the ids of the documents that an evaluation's own document says that there are, in order."""
    runs = (head.get("load") or {}).get("runs", ())
    return [
        _document_id(head["save_id"], number, sequence)
        for number, run in enumerate(runs)
        for sequence in range(-(-run["query_count"] // QUERIES_PER_DOCUMENT))
    ]


def load_record(head: Mapping[str, Any], documents: Sequence[Mapping[str, Any]]) -> LoadRecord | None:
    """Returns the load part of an evaluation; None where it has none.

    Raises:
        KeyError, TypeError, ValueError: It is damaged.
    """
    stored = head.get("load")
    if stored is None:
        return None
    options, answer = restored(stored["options"]), restored(stored["answer"])
    return LoadRecord(
        options=_options(options),
        runs=tuple(
            LoadRun(
                **{name: restored(run[name]) for name in _RUN},
                reasons={restored(reason): int(count) for reason, count in run["reasons"]},
                queries=_queries(run, [each for each in documents if each["run"] == number]),
            )
            for number, run in enumerate(stored["runs"])
        ),
        answer=RateAnswer(**answer) if answer else None,
        # what was kept before there were scenarios has neither this nor the option
        mlperf=_mlperf(restored(stored.get("mlperf"))),
    )


def _options(stored: dict[str, Any]) -> LoadOptions:
    scenario = stored.get("scenario")
    return LoadOptions(
        **stored | {"kind": LoadKind(stored["kind"]), "scenario": Scenario(scenario) if scenario else None}
    )


def _mlperf(stored: dict[str, Any] | None) -> MlperfResult | None:
    if stored is None:
        return None
    percentiles = tuple((float(percent), int(value_ns)) for percent, value_ns in stored["percentiles_ns"])
    return MlperfResult(**stored | {"reasons": tuple(stored["reasons"]), "percentiles_ns": percentiles})


def _queries(run: Mapping[str, Any], documents: Sequence[Mapping[str, Any]]) -> Queries:
    told = [
        n for n in QUERY_COLUMNS if n not in LATER_COLUMNS or all(n in document for document in documents)
    ]
    columns = {name: _joined([document[name] for document in documents]) for name in told}
    if {len(column) for column in columns.values()} != {int(run["query_count"])}:
        raise ValueError(f"not all of the {run['query_count']} queries of a run are there")
    return Queries(**columns, repeated=int(run["repeated"]))


def _joined(parts: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    return np.concatenate([np.empty(0, np.int64), *(np.array(part, np.int64) for part in parts)])


def _document_id(save_id: str, run: int, sequence: int) -> str:
    return f"{save_id}/load/{run}/{sequence}"


def _fields_of(record: Any) -> dict[str, Any]:
    return {field.name: storable(getattr(record, field.name)) for field in fields(record)}
