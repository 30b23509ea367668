"""Evaluations that the program kept under its first name are read, and reported on as they were then.

``tests/data/documents_v1`` holds documents of schema version 1 as JSON texts, one SQLite file, and in
``reports.json`` the rows that that version printed of them.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import uuid
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from inferometer.agent.hardware.environment import Precision, Weights
from inferometer.client.commands.evaluation import rows_of
from inferometer.evaluators.kinds.batches.measurement import BatchMeasurement
from inferometer.evaluators.kinds.load.measurement import LoadMeasurement, RateSearchMeasurement, Scenario
from inferometer.evaluators.kinds.load.report import ProbesReport
from inferometer.evaluators.kinds.registry import find_report
from inferometer.evaluators.kinds.reports import LayerRunsReport
from inferometer.evaluators.reports.base import Report
from inferometer.evaluators.store.evaluation_store import (
    EvaluationFilter,
    EvaluationStore,
    evaluation_from_json,
    evaluation_to_json,
)
from inferometer.evaluators.store.opening import open_store
from inferometer.manifests.errors import StoreError
from tests.contract.store_fixtures import StoreBackend, mongodb_backend
from tests.reports.pictures import REPORTS

DATA = Path(__file__).parent.parent / "data" / "documents_v1"
SAMPLES = sorted(path.stem for path in DATA.glob("*.json") if path.stem != "reports")
REPORTED: dict[str, list[dict[str, Any]]] = json.loads(
    (DATA / "reports.json").read_text("utf-8").replace("inferscope.", "inferometer.")
)
ALL = EvaluationFilter(include_interrupted=True)


def text_of(sample: str) -> str:
    return (DATA / f"{sample}.json").read_text("utf-8")


@pytest.fixture(scope="module", params=["sqlite", "mongodb"])
def kept(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EvaluationStore]:
    """A database with the old documents as they are."""
    directory, name = tmp_path_factory.mktemp("v1"), f"old_{uuid.uuid4().hex}"
    if request.param == "sqlite":
        yield from filled(StoreBackend(None, directory), name)
    else:
        with mongodb_backend(directory) as mongodb:
            yield from filled(mongodb, name)


def filled(backend: StoreBackend, name: str) -> Iterator[EvaluationStore]:
    backend.open(name).close()
    with backend.documents(name) as database:
        for sample in SAMPLES:
            content = json.loads(text_of(sample))
            head = content.pop("evaluation")
            for collection, documents in content.items():
                if collection != "format" and documents:
                    database[collection].insert_many(documents)
            database["evaluation"].insert_one(
                head | {"created_at": datetime.fromisoformat(head["created_at"])}
            )
    store = backend.open(name)
    yield store
    store.close()


def reports() -> dict[str, Report[Any]]:
    every: dict[str, Report[Any]] = {name: find_report(name) for name in REPORTS}
    return every | {"probes": ProbesReport(), "layer_runs": LayerRunsReport()}


@pytest.mark.parametrize("name", REPORTED)  # later versions have more reports
def test_every_report_has_the_rows_and_columns_of_the_version_that_kept_them(
    kept: EvaluationStore, name: str
) -> None:
    report = reports()[name]
    kinds = tuple(taken.kind for taken in report.takes) or None
    found = kept.find(EvaluationFilter(include_interrupted=True, kinds=kinds))
    rows = [{key: finite(value) for key, value in row.items()} for row in rows_of(report, found, kept)]
    if name == "eventflow":
        rows = [row for row in rows if str(row["id"]).startswith("d4f3")]

    then = [{key: now_known(key, value, row) for key, value in row.items()} for row in REPORTED[name]]
    keys = list(then[0]) if then else []
    assert [{key: row[key] for key in keys} for row in rows] == then
    assert [column.key for column in report.columns if column.key in keys] == keys, "a column has moved"


def now_known(key: str, value: Any, row: dict[str, Any]) -> Any:
    """What a report says today: a percentile of too few batches, or runs of a layer, is not known."""
    count = row.get("measured_batches", row.get("occurrences"))
    found = re.fullmatch(r"(latency_ms|duration_us)_p(\d+)", key)
    if found and count is not None and count * (100 - int(found[2])) < 500:
        return None
    return value


def finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def test_reports_were_kept_of_every_kind() -> None:
    assert {name for name, rows in REPORTED.items() if not rows} == {"cuda_launch"}


@pytest.mark.parametrize("sample", SAMPLES)
def test_a_text_is_read_whole_and_written_in_the_present_schema(sample: str) -> None:
    old = json.loads(text_of(sample))

    read = evaluation_from_json(text_of(sample))
    again = evaluation_to_json(read)

    assert read.id == old["evaluation"]["_id"]
    assert (
        read.system.environment.inferometer_version == old["evaluation"]["environment"]["inferscope_version"]
    )
    assert read.trace_level.name == old["evaluation"]["options"]["trace_level"]
    assert sum(len(chunk) for chunk in read.spans) == sum(len(each["span_id"]) for each in old["span"])
    for old_name in ('"inferscope.', "inferscope_version", "inferscope evaluation"):
        assert old_name not in again
    assert evaluation_to_json(evaluation_from_json(again)) == again


def test_what_was_measured_is_read_by_its_kind() -> None:
    interrupted, urls, workload, mlperf, closed, search = (
        evaluation_from_json(text_of(name)).measurement
        for name in ("interrupted", "urls", "workload", "mlperf", "closed_loop", "rate_search")
    )
    assert isinstance(interrupted, BatchMeasurement)
    assert isinstance(urls, BatchMeasurement)
    assert [failure.stage.value for failure in urls.failures] == ["preprocess"]
    assert len(urls.predictions) == 5
    assert isinstance(workload, LoadMeasurement)
    assert workload.mlperf is None
    assert isinstance(mlperf, LoadMeasurement)
    assert mlperf.options.scenario is Scenario.SINGLE_STREAM
    assert mlperf.mlperf is not None
    assert isinstance(closed, LoadMeasurement)
    assert closed.options.concurrency == 2
    assert isinstance(search, RateSearchMeasurement)
    assert search.answer is not None
    assert len(search.probes) == 5


def test_an_old_evaluation_is_not_kept_twice(kept: EvaluationStore) -> None:
    for sample in SAMPLES:
        assert kept.save(evaluation_from_json(text_of(sample))) is False
    assert len(kept.find(ALL)) == len(SAMPLES)


def test_predictions_and_spans_are_read_on_demand(kept: EvaluationStore) -> None:
    for sample in SAMPLES:
        read = evaluation_from_json(text_of(sample))
        spans = list(kept.spans(read.id))
        assert [chunk.kinds for chunk in spans] == [chunk.kinds for chunk in read.spans]
        if isinstance(read.measurement, BatchMeasurement):
            predicted = [(each.input_id, each.indices.tolist()) for each in read.measurement.predictions]
            stored = kept.predictions(read.id)
            assert [(each.input_id, each.indices.tolist()) for each in stored] == predicted


def test_old_evaluations_are_found_by_id_weights_and_kind(kept: EvaluationStore) -> None:
    head = json.loads(text_of("workload"))["evaluation"]
    wanted = EvaluationFilter(
        evaluation_id=head["_id"], kinds=("load",), weights=Weights.PRETRAINED, model_name="digitscnn"
    )
    assert [each.id for each in kept.find(wanted)] == [head["_id"]]
    assert kept.find(EvaluationFilter(evaluation_id=head["_id"], kinds=("batches", "rate_search"))) == []
    assert len(kept.find(EvaluationFilter(include_interrupted=True, kinds=("batches", "load")))) == 11


def test_a_database_file_of_the_old_version_opens(tmp_path: Path) -> None:
    shutil.copy(DATA / "evaluations.db", tmp_path / "inferscope.db")
    store = open_store(None, "inferscope", tmp_path)
    try:
        kinds = sorted(each.measurement.kind for each in store.find(ALL))
        [traced] = [each for each in store.find(ALL) if each.trace_level.name == "FRAMEWORK_TRACE"]
        assert kinds == ["batches", "batches", "load", "rate_search"]
        assert sum(len(chunk) for chunk in store.spans(traced.id)) == 126
    finally:
        store.close()


@pytest.mark.parametrize("missing", ["performance", "model_accuracy", "input_prediction"])
def test_an_old_text_without_one_of_its_parts_is_refused(missing: str) -> None:
    content = json.loads(text_of("pytorch"))
    with pytest.raises(StoreError, match="is damaged"):
        evaluation_from_json(json.dumps(content | {missing: []}))


def test_an_old_text_of_an_unknown_load_is_refused() -> None:
    content = json.loads(text_of("workload"))
    content["evaluation"]["load"]["options"]["kind"] = "another"
    with pytest.raises(StoreError, match="is damaged"):
        evaluation_from_json(json.dumps(content))


def test_texts_from_before_traces_weights_and_scenarios_are_read() -> None:
    untraced = json.loads(text_of("interrupted"))
    del untraced["span"], untraced["load_query"]
    for name in ("trace", "group_id", "span_document_count", "load"):
        del untraced["evaluation"][name]
    del untraced["evaluation"]["system"]["weights"], untraced["evaluation"]["system"]["seed"]
    read = evaluation_from_json(json.dumps(untraced))
    assert (read.trace, read.group_id, read.spans) == (None, None, ())
    assert read.system.weights is Weights.PRETRAINED
    # before the precision was kept, a model in code computed in float32, and a file in its own
    in_code = read.system.manifest.model.graph_path is None
    assert read.system.precision is (Precision.FLOAT32 if in_code else None)
    assert read.system.cudnn_benchmark is None

    plain = json.loads(text_of("workload"))
    del plain["evaluation"]["load"]["mlperf"], plain["evaluation"]["load"]["options"]["scenario"]
    load = evaluation_from_json(json.dumps(plain)).measurement
    assert isinstance(load, LoadMeasurement)
    assert (load.mlperf, load.options.scenario) == (None, None)
