"""The reader of documents of schema version 1, which were written when the program was called inferscope.

In that version, every evaluation measured batches, with load as an optional part; its own document held the
ids of its parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

SCHEMA_VERSION = 1
FORMAT = "inferscope evaluation"
"""The mark that identifies a whole evaluation as JSON text."""
PART_IDS = "part_ids"
"""The field of an upgraded document that holds the ids of its parts by collection."""
COLLECTIONS = ("performance", "model_accuracy", "input_failure", "input_prediction", "span", "load_query")
_PREFIX, _PRESENT_PREFIX = "inferscope.", "inferometer."
_KINDS = {"batches": None, "load": "workload", "rate_search": "max_qps"}
"""The former ``load.options.kind`` by present kind; evaluations of batches had no load."""
_QUERIES_PER_DOCUMENT = 20_000


def kind_query(kinds: Sequence[str]) -> Mapping[str, Any]:
    """Returns the query that finds the evaluations of the given kinds."""
    of_load = [{"load.options.kind": _KINDS[kind]} for kind in kinds if kind in _KINDS]
    return {"schema_version": SCHEMA_VERSION, "$or": of_load}


def present_key(attribute: str) -> str:
    """Returns the present name of a span's attribute."""
    return attribute.replace(_PREFIX, _PRESENT_PREFIX, 1) if attribute.startswith(_PREFIX) else attribute


def upgraded(head: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the document of an evaluation in the present schema, with ``PART_IDS``.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: The document is damaged.
    """
    load, save_id = head.get("load"), head["save_id"]
    options = {name: value for name, value in head["options"].items() if name != "trace_level"}
    environment = dict(head["environment"])
    environment.setdefault("inferometer_version", environment.pop("inferscope_version", ""))
    measurement = {
        "options": options,
        "batch_count": head["batch_count"],
        "failure_count": head["failure_count"],
        "model_accuracy_id": head["model_accuracy_id"],
    }
    return {
        **head,
        "kind": "batches" if load is None else _kind(load),
        "environment": environment,
        "trace_level": head["options"]["trace_level"],
        "measurement": measurement if load is None else _load(load),
        PART_IDS: _part_ids(head, load, save_id),
    }


def _kind(load: Mapping[str, Any]) -> str:
    return {name: kind for kind, name in _KINDS.items()}[load["options"]["kind"]]


def _load(load: Mapping[str, Any]) -> dict[str, Any]:
    options = {name: value for name, value in load["options"].items() if name != "kind"}
    if _kind(load) == "rate_search":
        return {"options": options, "answer": load["answer"], "probes": load["runs"]}
    # what was kept before there were scenarios of MLPerf has no ``mlperf``
    return {"options": options, "run": load["runs"][0], "mlperf": load.get("mlperf")}


def _part_ids(head: Mapping[str, Any], load: Mapping[str, Any] | None, save_id: str) -> dict[str, list[str]]:
    accuracy_id = head["model_accuracy_id"]
    runs = load["runs"] if load else ()
    ids = {
        "span": [f"{save_id}/span/{n}" for n in range(head.get("span_document_count", 0))],
        "load_query": [
            f"{save_id}/load/{number}/{sequence}"
            for number, run in enumerate(runs)
            for sequence in range(-(-run["query_count"] // _QUERIES_PER_DOCUMENT))
        ],
    }
    if load:
        return ids
    return ids | {
        "performance": list(head["performance_ids"]),
        "model_accuracy": [accuracy_id] if accuracy_id else [],
        "input_failure": list(head["input_failure_ids"]),
        "input_prediction": [f"{save_id}/{n}" for n in range(head["input_prediction_count"])],
    }
