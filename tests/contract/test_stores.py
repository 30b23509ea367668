"""Every store keeps evaluations in the same way: one suite for SQLite and MongoDB's protocol."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inferometer.agent.hardware.environment import Device, DeviceKind, Weights
from inferometer.agent.inference.stages import InputFailure, Stage
from inferometer.agent.tasks.predictions import Classifications, ClassMaps, Values
from inferometer.evaluators.conditions.conditions import Conditions, Stability
from inferometer.evaluators.evaluation import Evaluation, Status
from inferometer.evaluators.kinds.batches.measurement import InputPrediction
from inferometer.evaluators.store.evaluation_store import (
    EvaluationFilter,
    EvaluationStore,
    evaluation_from_json,
    evaluation_to_json,
)
from inferometer.evaluators.tasks.metric import Accuracy, Score, ScoreInterval, TaskResult
from inferometer.manifests.errors import ConfigurationError, StoreError
from tests.contract.store_fixtures import (
    StoreBackend,
    make_batches,
    make_evaluation,
    make_manifest,
    make_predictions,
    make_system,
    plain,
    plain_prediction,
)
from tests.evaluations import changed
from tests.training_evaluations import make_training

ALL = EvaluationFilter()


def ids(store: EvaluationStore, wanted: EvaluationFilter) -> list[str]:
    return [evaluation.id for evaluation in store.find(wanted)]


def assert_kept(store: EvaluationStore, evaluation: Evaluation[Any]) -> None:
    [found] = [e for e in store.find(EvaluationFilter(include_interrupted=True)) if e.id == evaluation.id]
    assert plain(found) == plain(changed(evaluation, predictions=()))
    kept = store.predictions(evaluation.id)
    assert [plain_prediction(p) for p in kept] == [
        plain_prediction(p) for p in evaluation.measurement.predictions
    ]


def test_an_empty_store_finds_nothing(store: EvaluationStore) -> None:
    assert list(store.find(ALL)) == []


def test_an_evaluation_comes_back_as_it_was(store: EvaluationStore) -> None:
    evaluation = make_evaluation(predictions=make_predictions(7))
    assert store.save(evaluation) is True
    assert_kept(store, evaluation)


def test_the_ids_of_some_samples_of_a_dataset_are_kept(store: EvaluationStore) -> None:
    whole = make_evaluation()
    ids = (*(f"images/{number}.png" for number in range(20_001)), "a\udcff.png")
    dataset = replace(whole.dataset, size=len(ids), sample_ids=ids)
    store.save(replace(whole, dataset=dataset))
    [found] = store.find(ALL)
    assert found.dataset.sample_ids == (*ids[:-1], "a\\udcff.png")
    assert found.dataset.sample_ids_checksum == dataset.sample_ids_checksum
    assert (found.dataset.chosen_samples or "").startswith("20002 by id (sha256:")


def test_a_training_comes_back_as_it_was(store: EvaluationStore) -> None:
    evaluation = make_training(make_system(), ranks=2, accuracy=Accuracy(3, 4, 5), validation="digits")
    assert store.save(evaluation) is True
    [found] = store.find(EvaluationFilter(kinds=("training",)))
    for name in ("wait_ns", "whole_ns", "parts_at", "communicate_ns"):
        kept, saved = (getattr(each.measurement.times, name).tolist() for each in (found, evaluation))
        assert kept == saved
    assert found.measurement.losses.tolist() == evaluation.measurement.losses.tolist()
    assert found.measurement.options == evaluation.measurement.options
    assert found.measurement.accuracy == Accuracy(3, 4, 5)


def test_it_comes_back_through_another_connection(backend: StoreBackend, name: str) -> None:
    evaluation = make_evaluation()
    for action in (lambda s: s.save(evaluation), lambda s: assert_kept(s, evaluation)):
        store = backend.open(name)
        action(store)
        store.close()


def test_booleans_stay_booleans(backend: StoreBackend, name: str, store: EvaluationStore) -> None:
    gpu = make_system(device=Device(DeviceKind.GPU, 1), overlap=False)
    store.save(make_evaluation(system=gpu))
    [found] = store.find(ALL)
    assert found.system.overlap is False
    assert found.measurement.options.fail_on_error is False
    assert found.system.manifest.attributes["trained"] is True
    with backend.documents(name) as documents:
        assert documents["evaluation"].find_one({})["using_gpu"] is True


def test_without_batches_accuracy_and_failures(store: EvaluationStore) -> None:
    evaluation = make_evaluation(times=make_batches(0), accuracy=None, failures=(), elapsed_ns=0)
    store.save(evaluation)
    assert_kept(store, evaluation)


def test_an_accuracy_over_nothing_is_kept(store: EvaluationStore) -> None:
    evaluation = make_evaluation(accuracy=Accuracy(0, 0, 0))
    store.save(evaluation)
    assert_kept(store, evaluation)


def test_fifty_thousand_batches(store: EvaluationStore) -> None:
    evaluation = make_evaluation(times=make_batches(50_000))
    store.save(evaluation)
    assert_kept(store, evaluation)


def test_failures_beyond_what_one_document_may_hold(store: EvaluationStore) -> None:
    failures = tuple(InputFailure(f"{i}.png", Stage.PREPROCESS, f"{i} " + "é" * 20_000) for i in range(500))
    evaluation = make_evaluation(failures=failures)
    store.save(evaluation)
    assert_kept(store, evaluation)


def test_more_predictions_than_one_insert_takes(store: EvaluationStore) -> None:
    evaluation = make_evaluation(predictions=make_predictions(2_500))
    store.save(evaluation)
    assert_kept(store, evaluation)


def test_predictions_carry_the_names_of_their_classes(
    backend: StoreBackend, name: str, store: EvaluationStore
) -> None:
    store.save(make_evaluation(predictions=make_predictions(1)))
    with backend.documents(name) as documents:
        [prediction] = documents["input_prediction"].find({})
    assert [feature["label"] for feature in prediction["features"]] == ["二", "zéro", "один"]


def test_the_predictions_and_the_result_of_another_task_are_kept(store: EvaluationStore) -> None:
    large = ClassMaps(np.array([[1, 3_000_000]], np.int64), np.arange(3_000_000, dtype=np.int32))
    each = (large, Values(np.array([[0.5, np.nan]], np.float32)))
    result = TaskResult("regression", "MAE", 2, (Score("MAE", 0.5, ScoreInterval(0.25, np.inf)),), {"a.b": 1})
    evaluation = make_evaluation(
        system=make_system(manifest=make_manifest(output={"type": "regression"})),
        accuracy=None,
        predictions=tuple(InputPrediction(f"{n}.png", None, one) for n, one in enumerate(each)),
        task_result=result,
    )
    store.save(evaluation)

    [found] = store.find(ALL)
    assert found.measurement.task_result == result
    kept = store.predictions(evaluation.id)
    assert [prediction.input_id for prediction in kept] == ["0.png", "1.png"]
    for one, other in zip(each, kept, strict=True):
        for name, column in one.columns().items():
            np.testing.assert_array_equal(other.prediction.columns()[name], column, strict=True)


def test_predictions_of_an_unknown_evaluation_are_an_error(store: EvaluationStore) -> None:
    with pytest.raises(StoreError, match="holds no evaluation nowhere"):
        store.predictions("nowhere")


def test_a_probability_that_is_no_number_is_kept(store: EvaluationStore) -> None:
    strange = np.array([np.nan, np.inf, -np.inf], np.float32)
    classes = Classifications(np.array([[0, 1, 2]], np.int64), strange[np.newaxis])
    prediction = InputPrediction("a", None, classes)
    evaluation = make_evaluation(predictions=(prediction,))
    store.save(evaluation)
    assert_kept(store, evaluation)


def test_a_name_that_is_not_utf8_is_kept_with_its_escape(store: EvaluationStore) -> None:
    store.save(make_evaluation(failures=(InputFailure("a\udcff.png", Stage.READ, "cannot be read"),)))
    assert store.find(ALL)[0].measurement.failures[0].input_id == "a\\udcff.png"


def test_the_time_is_cut_to_milliseconds(store: EvaluationStore) -> None:
    moment = make_evaluation().created_at
    store.save(make_evaluation(created_at=moment + timedelta(microseconds=999)))
    assert store.find(ALL)[0].created_at == moment


def test_saving_again_changes_nothing(backend: StoreBackend, name: str, store: EvaluationStore) -> None:
    evaluation = make_evaluation(predictions=make_predictions(2))
    assert [store.save(evaluation), store.save(evaluation)] == [True, False]
    assert_kept(store, evaluation)
    with backend.documents(name) as documents:
        assert len(list(documents["performance"].find({}))) == 1


def test_another_evaluation_with_the_same_id_is_refused(store: EvaluationStore) -> None:
    evaluation = make_evaluation()
    store.save(evaluation)
    with pytest.raises(StoreError, match="another evaluation has the id"):
        store.save(changed(evaluation, elapsed_ns=1))
    assert_kept(store, evaluation)


def test_ids_are_found_by_their_beginning(store: EvaluationStore) -> None:
    for changes in ({"id": "ab-1"}, {"id": "ab-2", "group_id": "a.c"}, {"id": "b%1", "group_id": "a.c"}):
        store.save(make_evaluation(**changes, status=Status.INTERRUPTED))

    assert store.ids("ab") == ["ab-1", "ab-2"]
    assert store.ids("a") == ["a.c", "ab-1", "ab-2"]
    assert store.ids("ab-2") == ["ab-2"]
    assert store.ids("a.") == ["a.c"]
    assert store.ids("b%") == ["b%1"]
    assert store.ids("") == ["a.c", "ab-1", "ab-2", "b%1"]
    for none in ("ab-12", "c", "AB", "%", "a_", ".*"):
        assert store.ids(none) == []


def test_an_id_is_that_of_an_evaluation_or_of_its_group(store: EvaluationStore) -> None:
    for changes in ({"id": "a"}, {"id": "b", "group_id": "g"}, {"id": "c", "group_id": "g"}):
        store.save(make_evaluation(**changes))

    for wanted, found in {"a": {"a"}, "b": {"b"}, "g": {"b", "c"}, "h": set()}.items():
        assert set(ids(store, EvaluationFilter(evaluation_id=wanted))) == found


def test_interrupted_evaluations_are_found_only_if_asked_for(store: EvaluationStore) -> None:
    evaluation = make_evaluation(status=Status.INTERRUPTED)
    store.save(evaluation)
    assert ids(store, ALL) == []
    assert ids(store, EvaluationFilter(include_interrupted=True)) == [evaluation.id]


def test_the_newest_come_first_and_the_limit_takes_them(
    backend: StoreBackend, store: EvaluationStore
) -> None:
    # at a whole second, whose text is shorter; nx-27017 itself goes by the length from SQLite 3.45 on
    start = make_evaluation().created_at.replace(microsecond=2000 if backend.address else 0)
    ages_ms = {
        age: make_evaluation(created_at=start - timedelta(milliseconds=age)) for age in (500, 0, 1, 1000)
    }
    twins = [make_evaluation(created_at=start - timedelta(hours=1)) for _ in range(3)]
    for evaluation in (*ages_ms.values(), *twins):
        store.save(evaluation)
    expected = [ages_ms[age].id for age in sorted(ages_ms)] + sorted((e.id for e in twins), reverse=True)
    assert ids(store, ALL) == expected
    for limit in (0, 1, 6, 99):
        assert ids(store, EvaluationFilter(limit=limit)) == expected[:limit]


def test_a_negative_limit_is_an_error(store: EvaluationStore) -> None:
    with pytest.raises(ConfigurationError, match="limit -1"):
        store.find(EvaluationFilter(limit=-1))


def test_a_page_of_evaluations_is_found_and_all_are_counted(store: EvaluationStore) -> None:
    start = make_evaluation().created_at
    for age in range(5):
        store.save(make_evaluation(created_at=start - timedelta(seconds=age)))
    expected = ids(store, ALL)

    assert ids(store, EvaluationFilter(offset=1, limit=2)) == expected[1:3]
    assert ids(store, EvaluationFilter(offset=4, limit=2)) == expected[4:]
    assert ids(store, EvaluationFilter(offset=5, limit=2)) == []
    assert store.count(EvaluationFilter(offset=1, limit=2)) == 5
    assert store.count(EvaluationFilter(batch_size=1)) == 0


def test_the_choices_are_what_stored_evaluations_have(store: EvaluationStore) -> None:
    assert set(map(tuple, store.choices().values())) == {()}
    stable = make_evaluation(conditions=Conditions(Stability.STABLE))
    for evaluation in (stable, make_evaluation(batch_size=2), make_evaluation(batch_size=1)):
        store.save(evaluation)

    assert store.choices() == {
        "model_name": [stable.system.manifest.name],
        "framework_name": [stable.system.manifest.framework.name],
        "hostname": [stable.system.environment.hostname],
        "kind": ["batches"],
        "stability": ["stable"],
        "batch_size": [1, 2, stable.measurement.batch_size],
    }
    assert ids(store, EvaluationFilter(stability=Stability.STABLE)) == [stable.id]


WANTED = {
    "model_name": "digitscnn",
    "model_version": "1.0",
    "framework_name": "mxnet",
    "framework_version": "1.9.1",
    "architecture": "X86_64",
    "hostname": " bENCH-1",
    "batch_size": 16,
    "weights": Weights.PRETRAINED,
}


def others() -> dict[str, Evaluation]:
    """For each field of the filter an evaluation that differs from the wanted one in this alone."""
    torch = make_manifest(framework={"name": "PyTorch", "version": ">=2"})
    return {
        "model_name": make_evaluation(system=make_system(manifest=make_manifest(name="DigitsCNN2"))),
        "model_version": make_evaluation(system=make_system(manifest=make_manifest(version="1.0.1"))),
        "framework_name": make_evaluation(system=make_system(manifest=torch)),
        "framework_version": make_evaluation(system=make_system(framework_version="1.9.10")),
        "architecture": make_evaluation(system=make_system(architecture="aarch64")),
        "hostname": make_evaluation(system=make_system(hostname="bench-11")),
        "batch_size": make_evaluation(batch_size=1),
        "weights": make_evaluation(system=make_system(weights=Weights.RANDOM, seed=3)),
    }


def test_each_field_of_the_filter_alone_and_all_together(store: EvaluationStore) -> None:
    wanted, unwanted = make_evaluation(), others()
    assert set(unwanted) == set(WANTED)
    for evaluation in (wanted, *unwanted.values()):
        store.save(evaluation)
    for field, value in WANTED.items():
        found = set(ids(store, EvaluationFilter(**{field: value})))
        assert found == {wanted.id, *(e.id for e in unwanted.values())} - {unwanted[field].id}, field
    assert ids(store, EvaluationFilter(**WANTED)) == [wanted.id]


def test_evaluations_of_random_weights_are_found_as_such(store: EvaluationStore) -> None:
    random = make_evaluation(system=make_system(weights=Weights.RANDOM, seed=3))
    for evaluation in (random, make_evaluation()):
        store.save(evaluation)
    assert ids(store, EvaluationFilter(weights=Weights.RANDOM)) == [random.id]


def test_a_framework_version_stands_for_its_builds(store: EvaluationStore) -> None:
    cpu = make_evaluation(system=make_system(framework_version="2.13.0+cpu"))
    cuda = make_evaluation(system=make_system(framework_version="2.13.0+cu126"))
    for evaluation in (cpu, cuda):
        store.save(evaluation)
    assert set(ids(store, EvaluationFilter(framework_version="2.13.0"))) == {cpu.id, cuda.id}
    assert ids(store, EvaluationFilter(framework_version="2.13.0+CPU")) == [cpu.id]


def test_a_name_that_looks_like_a_date_is_found(store: EvaluationStore) -> None:
    system = make_system(hostname="2025-01-31", manifest=make_manifest(name="2025-01-31T10:00:00"))
    evaluation = make_evaluation(system=system)
    store.save(evaluation)
    assert ids(store, EvaluationFilter(hostname="2025-01-31")) == [evaluation.id]
    assert ids(store, EvaluationFilter(model_name="2025-01-31t10:00:00")) == [evaluation.id]


def test_parts_without_their_evaluation_are_not_found(
    backend: StoreBackend, name: str, store: EvaluationStore
) -> None:
    evaluation = make_evaluation()
    store.save(evaluation)
    with backend.documents(name) as documents:
        documents["evaluation"].delete_one({"_id": evaluation.id})
    assert ids(store, ALL) == []
    assert store.save(evaluation) is True  # what was left behind is in nobody's way
    assert_kept(store, evaluation)


@pytest.mark.parametrize(
    ("collection", "missing"),
    [
        ("performance", "0 of its 3 batches"),
        ("model_accuracy", "accuracy is missing"),
        ("input_failure", "0 of its 1 failures"),
    ],
)
def test_a_missing_part_is_an_error_that_names_the_evaluation(
    backend: StoreBackend, name: str, store: EvaluationStore, collection: str, missing: str
) -> None:
    evaluation = make_evaluation()
    store.save(evaluation)
    with backend.documents(name) as documents:
        documents[collection].delete_many({"evaluation_id": evaluation.id})
    with pytest.raises(StoreError, match=f"{name}.*{evaluation.id} is damaged.*{missing}"):
        store.find(ALL)


def test_a_missing_chunk_of_the_times_is_an_error(
    backend: StoreBackend, name: str, store: EvaluationStore
) -> None:
    evaluation = make_evaluation(times=make_batches(40_001))
    store.save(evaluation)
    with backend.documents(name) as documents:
        assert documents["performance"].delete_many({"sequence": 1}).deleted_count == 1
    with pytest.raises(StoreError, match=f"{evaluation.id} is damaged"):
        store.find(ALL)


def test_missing_predictions_are_an_error(backend: StoreBackend, name: str, store: EvaluationStore) -> None:
    evaluation = make_evaluation(predictions=make_predictions(3))
    store.save(evaluation)
    with backend.documents(name) as documents:
        documents["input_prediction"].delete_many({"input_index": 1})
    with pytest.raises(StoreError, match="2 of its 3 predictions"):
        store.predictions(evaluation.id)


def test_a_newer_schema_is_an_error_that_asks_for_an_update(
    backend: StoreBackend, name: str, store: EvaluationStore
) -> None:
    with backend.documents(name) as documents:
        documents["evaluation"].insert_one({"_id": "future", "schema_version": 4, "status": "complete"})
    with pytest.raises(StoreError, match=r"evaluation future was written by a newer inferometer.*update"):
        store.find(ALL)


def test_a_foreign_document_is_an_error(backend: StoreBackend, name: str, store: EvaluationStore) -> None:
    with backend.documents(name) as documents:
        documents["evaluation"].insert_one({"_id": "foreign", "schema_version": 1, "status": "complete"})
    with pytest.raises(StoreError, match="evaluation foreign is damaged") as caught:
        store.find(ALL)
    assert "\n" not in str(caught.value)


def test_a_closed_store_can_be_closed_again(backend: StoreBackend, name: str) -> None:
    store = backend.open(name)
    store.close()
    store.close()
    with pytest.raises(StoreError):
        store.find(ALL)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.text(),
    times=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4),
    attributes=st.dictionaries(
        st.text(max_size=8),
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    ),
)
def test_whatever_is_in_it_comes_back(
    store: EvaluationStore, text: str, times: list[int], attributes: dict[str, object]
) -> None:
    batches = make_batches(len(times))
    evaluation = make_evaluation(
        system=make_system(manifest=make_manifest(attributes=attributes)),
        times=replace(batches, predict_ns=np.array(times, np.int64)),
        failures=(InputFailure(text, Stage.READ, text),),
    )
    store.save(evaluation)
    assert_kept(store, evaluation)


def test_who_asks_to_be_told_gets_all_that_can_be_read(
    backend: StoreBackend, name: str, store: EvaluationStore
) -> None:
    good, damaged = make_evaluation(), make_evaluation()
    store.save(good)
    store.save(damaged)
    with backend.documents(name) as documents:
        documents["performance"].delete_many({"evaluation_id": damaged.id})
        documents["evaluation"].insert_one({"_id": "future", "schema_version": 4, "status": "complete"})
    told: list[StoreError] = []
    assert [evaluation.id for evaluation in store.find(ALL, told.append)] == [good.id]
    assert sorted(damaged.id in str(error) for error in told) == [False, True]
    assert sorted("future" in str(error) for error in told) == [False, True]


def test_where_the_weights_came_from_is_kept(
    backend: StoreBackend, name: str, store: EvaluationStore
) -> None:
    random = replace(make_system(), weights=Weights.RANDOM, seed=2**62 + 1)
    evaluation = make_evaluation(system=random, accuracy=None)
    store.save(evaluation)
    (found,) = store.find(ALL)
    assert found.system.weights is Weights.RANDOM
    assert found.system.seed == 2**62 + 1
    spooled = evaluation_from_json(evaluation_to_json(evaluation))
    assert spooled.system.weights is Weights.RANDOM


def test_an_evaluation_from_before_weights_were_recorded_is_read(
    backend: StoreBackend, name: str, store: EvaluationStore
) -> None:
    evaluation = make_evaluation()
    store.save(evaluation)
    with backend.documents(name) as documents:
        head = documents["evaluation"].find_one({"_id": evaluation.id})
        del head["system"]["weights"], head["system"]["seed"]
        documents["evaluation"].delete_one({"_id": evaluation.id})
        documents["evaluation"].insert_one(head)
    (found,) = store.find(ALL)
    assert found.system.weights is Weights.PRETRAINED
    assert ids(store, EvaluationFilter(weights=Weights.PRETRAINED)) == [found.id]
    assert ids(store, EvaluationFilter(weights=Weights.RANDOM)) == []
