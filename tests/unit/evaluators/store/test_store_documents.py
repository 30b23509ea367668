"""Evaluations as documents, JSON text and files: the round trip, and refused documents."""

from __future__ import annotations

import json
import math
import stat
from collections.abc import Callable
from dataclasses import replace
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import bson
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer.agent.hardware.environment import Precision
from inferometer.agent.inference.stages import InputFailure, Stage
from inferometer.agent.tasks.predictions import Classifications
from inferometer.agent.tracing.recorder import TraceLevel
from inferometer.evaluators.documents import VALUES_PER_DOCUMENT, restored, storable
from inferometer.evaluators.evaluation import Evaluation, Status
from inferometer.evaluators.kinds.batches.measurement import BatchTimes, InputPrediction
from inferometer.evaluators.kinds.batches.request import BatchOptions
from inferometer.evaluators.store.documents import (
    SCHEMA_VERSION,
    Document,
    Documents,
    from_documents,
    to_documents,
)
from inferometer.evaluators.store.evaluation_store import (
    evaluation_from_json,
    evaluation_to_json,
    read_spool,
    write_spool,
)
from inferometer.evaluators.tasks.metric import Accuracy
from inferometer.manifests.errors import StoreError
from tests.contract.store_fixtures import (
    make_batches,
    make_evaluation,
    make_manifest,
    make_predictions,
    make_system,
    plain,
)

MONGODB_LIMIT_BYTES = 16 * 2**20

int64 = st.integers(-(2**63), 2**63 - 1)
texts = st.text(max_size=12)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@st.composite
def batch_times(draw: st.DrawFn) -> BatchTimes:
    count = draw(st.integers(0, 5))
    column = st.lists(int64, min_size=count, max_size=count)
    return BatchTimes(*(np.array(draw(column), np.int64) for _ in range(5)))


@st.composite
def input_predictions(draw: st.DrawFn) -> InputPrediction:
    count = draw(st.integers(0, 4))
    shares = st.lists(st.floats(width=32, allow_nan=False), min_size=count, max_size=count)
    indices = st.lists(st.integers(0, 9), min_size=count, max_size=count)
    return InputPrediction(
        draw(texts),
        draw(st.none() | texts),
        Classifications(np.array([draw(indices)], np.int64), np.array([draw(shares)], np.float32)),
    )


@st.composite
def evaluations(draw: st.DrawFn) -> Evaluation:
    system = make_system(
        manifest=make_manifest(attributes=draw(st.dictionaries(texts, values, max_size=3))),
        hostname=draw(texts),
        threads=draw(st.none() | st.integers(1, 64)),
        overlap=draw(st.booleans()),
        precision=draw(st.none() | st.sampled_from(Precision)),
        cudnn_benchmark=draw(st.none() | st.booleans()),
    )
    return make_evaluation(
        created_at=draw(st.datetimes(datetime(1970, 1, 2), datetime(2200, 1, 1))).replace(
            microsecond=draw(st.integers(0, 999)) * 1000, tzinfo=timezone.utc
        ),
        status=draw(st.sampled_from(Status)),
        system=system,
        options=BatchOptions(
            8,
            8,
            fail_on_error=draw(st.booleans()),
            min_duration_s=draw(st.floats(0, 10)),
            min_batches=draw(st.integers(0, 2**31 - 1)),
            target_ci_percent=draw(st.none() | st.floats(0.01, 100)),
            time_budget_s=draw(st.none() | st.floats(10, 1e6)),
        ),
        process=draw(st.none() | st.integers(1, 2**31)),
        trace_level=draw(st.sampled_from(TraceLevel)),
        times=draw(batch_times()),
        elapsed_ns=draw(st.integers(0, 2**63 - 1)),
        accuracy=draw(
            st.none() | st.tuples(*[st.integers(0, 2**40)] * 3).map(lambda each: Accuracy(*sorted(each)))
        ),
        failures=tuple(
            draw(st.lists(st.builds(InputFailure, texts, st.sampled_from(Stage), texts), max_size=3))
        ),
        predictions=tuple(draw(st.lists(input_predictions(), max_size=3))),
    )


def through(documents: Documents, change: Callable[[Document], Document]) -> Documents:
    """The documents after each has been ``change``d."""
    parts = {name: [change(document) for document in part] for name, part in documents.parts.items()}
    return Documents(change(documents.evaluation), parts)


def through_bson(document: Document) -> Document:
    options: Any = bson.CodecOptions(tz_aware=True)
    return dict(bson.decode(bson.encode(document), options))


@settings(max_examples=40, deadline=None)
@given(evaluations())
def test_any_evaluation_comes_back_from_bson_and_from_json(evaluation: Evaluation) -> None:
    assert plain(from_documents(through(to_documents(evaluation, "s"), through_bson))) == plain(evaluation)
    assert plain(evaluation_from_json(evaluation_to_json(evaluation))) == plain(evaluation)


@given(values)
def test_any_value_comes_back_and_its_stored_form_is_plain(value: object) -> None:
    stored = storable(value)
    assert repr(restored(stored)) == repr(value)
    assert bson.decode(bson.encode({"v": stored})) == {"v": stored}
    assert json.loads(json.dumps(stored, allow_nan=False)) == stored


def test_values_that_no_database_keeps_are_kept_nevertheless() -> None:
    assert math.isnan(restored(storable(math.nan)))
    assert restored(storable({"d": date(2020, 1, 2), "t": (1, 2)})) == {"d": "2020-01-02", "t": [1, 2]}
    assert storable("a\udcff") == "a\\udcff"


def test_no_document_nears_the_limit_of_mongodb() -> None:
    failures = tuple(InputFailure(f"{i}", Stage.READ, "x" * 50_000) for i in range(400))
    evaluation = make_evaluation(times=make_batches(3 * VALUES_PER_DOCUMENT + 1), failures=failures)
    documents = to_documents(evaluation, "s")
    parts = {name: list(part) for name, part in documents.parts.items()}
    every = [documents.evaluation, *parts["performance"], *parts["input_failure"]]
    assert len(parts["performance"]) == documents.evaluation["parts"]["performance"] == 4
    assert max(len(bson.encode(document)) for document in every) < MONGODB_LIMIT_BYTES / 4


def test_the_documents_have_the_fields_of_mlmodelscope() -> None:
    documents = to_documents(make_evaluation(), "s")
    assert documents.evaluation.keys() >= {
        "created_at", "framework", "model", "machine_architecture", "using_gpu", "batch_size", "hostname",
    }  # fmt: skip
    assert documents.evaluation["schema_version"] == 2  # which earlier programs read
    assert documents.evaluation["model"]["name"] == "DigitsCNN"
    [accuracy] = documents.parts["model_accuracy"]
    assert documents.evaluation["measurement"]["model_accuracy_id"] == accuracy["_id"]
    assert (accuracy["top_1"], accuracy["top_5"], accuracy["evaluated_count"]) == (351 / 360, 1.0, 360)


def test_a_time_in_another_zone_is_kept_in_utc() -> None:
    moment = datetime(2025, 1, 1, 1, tzinfo=timezone(timedelta(hours=2)))
    kept = from_documents(to_documents(make_evaluation(created_at=moment), "s")).created_at
    assert kept == moment
    assert kept.utcoffset() == timedelta(0)


def without(name: str) -> Callable[[Document], Document]:
    return lambda head: {key: value for key, value in head.items() if key != name}


def having(**changes: Any) -> Callable[[Document], Document]:
    return lambda head: head | changes


def measuring(**changes: Any) -> Callable[[Document], Document]:
    return lambda head: head | {"measurement": head["measurement"] | changes}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("schema_version"), "has no schema_version"),
        (having(schema_version="1"), "has no schema_version"),
        (having(schema_version=SCHEMA_VERSION + 1), "newer inferometer .schema 4"),
        (without("elapsed_ns"), "damaged: KeyError: 'elapsed_ns'"),
        (having(status="excellent"), "'excellent' is not a valid Status"),
        (having(kind="levitation"), "newer inferometer .it measured levitation"),
        (without("parts"), "damaged: KeyError: 'parts'"),
        (measuring(batch_count=4), "3 of its 4 batches"),
        (measuring(failure_count=0), "1 of its 0 failures"),
        (measuring(model_accuracy_id=None), "accuracy is missing"),
        (having(model={"name": "x"}), "damaged: ValidationError"),
        (without("trace_level"), "damaged: KeyError: 'trace_level'"),
        (measuring(options={"batch_size": 0, "partition_list_size": 1}), "batch_size is 0"),
        (having(created_at="today"), "damaged: AttributeError"),
        (having(environment=None), "damaged: TypeError"),
    ],
)
def test_a_damaged_document_is_an_error_in_one_line(
    change: Callable[[Document], Document], message: str
) -> None:
    documents = to_documents(make_evaluation(id="e-1"), "s")
    with pytest.raises(StoreError, match=message) as caught:
        from_documents(replace(documents, evaluation=change(documents.evaluation)))
    assert str(caught.value).startswith("evaluation e-1 ")
    assert "\n" not in str(caught.value)


def test_columns_of_different_length_are_an_error() -> None:
    documents = to_documents(make_evaluation(), "s")
    parts = {name: list(part) for name, part in documents.parts.items()}
    [times] = parts["performance"]
    cut = times | {"predict_ns": times["predict_ns"][:-1]}
    with pytest.raises(StoreError, match="differ in length"):
        from_documents(replace(documents, parts={**parts, "performance": [cut]}))


def test_a_spooled_evaluation_comes_back_whole(tmp_path: Path) -> None:
    evaluation = make_evaluation(predictions=make_predictions(3))
    path = write_spool(evaluation, tmp_path / "unpublished")
    assert write_spool(evaluation, tmp_path / "unpublished") == path
    assert list((tmp_path / "unpublished").iterdir()) == [path]
    assert path.suffix == ".json"
    assert plain(read_spool(path)) == plain(evaluation)


def test_an_id_does_not_lead_out_of_the_spool(tmp_path: Path) -> None:
    path = write_spool(make_evaluation(id="../../evil"), tmp_path / "spool")
    assert path.parent == tmp_path / "spool"
    assert read_spool(path).id == "../../evil"


def test_a_file_that_is_cut_off_anywhere_is_an_error(tmp_path: Path) -> None:
    path = write_spool(make_evaluation(predictions=make_predictions(1)), tmp_path)
    content = path.read_bytes()
    for length in range(0, len(content), 97):
        path.write_bytes(content[:length])
        with pytest.raises(StoreError, match="is cut off or not JSON"):
            read_spool(path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe\x00",
        b"null",
        b"[]",
        b"{}",
        b'{"format": "inferometer evaluation"}',
        b'{"format": "inferometer evaluation", "evaluation": 1, "parts": {}}',
        b'{"format": "inferometer evaluation", "evaluation": {"created_at": "2025-01-01"}, "parts": 5}',
        b"[" * 100_000,
    ],
)
def test_a_foreign_file_is_an_error_in_one_line_that_names_it(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "foreign.json"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"foreign\.json: ") as caught:
        read_spool(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("part", ["performance", "model_accuracy", "input_failure", "input_prediction"])
def test_a_file_without_one_of_its_parts_is_an_error(part: str, tmp_path: Path) -> None:
    path = write_spool(make_evaluation(predictions=make_predictions(2)), tmp_path)
    content = json.loads(path.read_text())
    assert content["parts"].pop(part)
    path.write_text(json.dumps(content))
    with pytest.raises(StoreError, match="is damaged"):
        read_spool(path)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"nowhere\.json: cannot be read"):
        read_spool(tmp_path / "nowhere.json")


def test_a_spool_that_cannot_be_written_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be written"):
        write_spool(make_evaluation(), tmp_path / "file" / "spool")
    evaluation = make_evaluation()
    (tmp_path / f"{evaluation.id}.json").mkdir()
    with pytest.raises(StoreError, match="cannot be written"):
        write_spool(evaluation, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"file", f"{evaluation.id}.json"}


def test_a_spooled_evaluation_is_for_its_owner(tmp_path: Path) -> None:
    assert stat.S_IMODE(write_spool(make_evaluation(), tmp_path).stat().st_mode) == 0o600
