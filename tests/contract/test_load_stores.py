"""Every store keeps measurements of load: options, runs with their queries, and search results."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from inferometer.agent.hardware.environment import Device
from inferometer.evaluators.documents import VALUES_PER_DOCUMENT
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.load.measurement import (
    LoadMeasurement,
    LoadOptions,
    MixMeasurement,
    MlperfResult,
    RateAnswer,
    RateSearchMeasurement,
    Scenario,
)
from inferometer.evaluators.load.queries import QUERY_COLUMNS, LoadRun, Outcome, Queries
from inferometer.evaluators.load.server_statistics import ServerSeries
from inferometer.evaluators.store.evaluation_store import (
    EvaluationFilter,
    EvaluationStore,
    evaluation_from_json,
    evaluation_to_json,
)
from inferometer.manifests.errors import StoreError
from tests.contract.store_fixtures import make_evaluation


def make_queries(count: int) -> Queries:
    numbers = np.arange(count, dtype=np.int64)
    return Queries(
        scheduled_ns=numbers * 10**7,
        sent_ns=numbers * 10**7 + 5,
        done_ns=numbers * 10**7 + 2**40,
        outcome=np.where(numbers % 7, int(Outcome.ANSWERED), int(Outcome.FAILED)),
        queue_ns=numbers - 1,
        predict_ns=numbers * 3,
        batch_size=numbers % 9,
        repeated=2,
        batch_ns=numbers * 5,
    )


def loaded(*counts: int, scenario: Scenario | None = None, search: bool = False) -> Evaluation:
    options = LoadOptions("gamma:cv=2", 76.5, latency_bound_ms=100.0, max_duration_s=None, seed=2**62 + 1)
    runs = [
        LoadRun(
            rate_qps=10.5 * number,
            source="poisson",
            seed=number,
            checksum="sha256:ab",
            queries=make_queries(count),
            cut_ns=5,
            stopped="the backlog grew",
            invalid="",
            reasons={"the queue is full: $x.y": 3, "é": 1},
        )
        for number, count in enumerate(counts)
    ]
    if search:
        answer = RateAnswer(76.9, 75.8, None, "single server")
        return make_evaluation(measurement=RateSearchMeasurement(options, tuple(runs), 7, answer))
    mlperf = None
    if scenario:
        options = replace(options, scenario=scenario)
        percentiles = ((50.0, 686290), (99.9, 2**40))
        mlperf = MlperfResult(
            *("6.0.17", False, ("Run at least 3 more.", "é"), 662, 483.25, 763122, percentiles, None, True),
            "/data/mlperf/$x.y",
        )
    [run] = runs
    return make_evaluation(measurement=LoadMeasurement(options, run, 7, mlperf))


def mixed(*counts: int) -> Evaluation:
    search = loaded(*counts, search=True).measurement
    assert isinstance(search, RateSearchMeasurement)
    half = len(counts) // 2
    sides = (tuple(search.probes[:half]), tuple(search.probes[half:]))
    others, given = ("b, poisson at 3 queries/s", "é"), {"mix": "mix.yaml", "blocks": 2, "duration_s": 0.5}
    options = replace(search.options, max_duration_s=0.5)
    mix = MixMeasurement("a", others, options, given, "- model_name: é\n", *sides, 7, "it is late")
    return make_evaluation(measurement=mix)


def plain(evaluation: Evaluation) -> Any:
    load = evaluation.measurement
    assert isinstance(load, LoadMeasurement | RateSearchMeasurement | MixMeasurement)
    runs: Sequence[LoadRun]
    match load:
        case RateSearchMeasurement():
            own, runs = load.answer, load.probes
        case LoadMeasurement():
            own, runs = load.mlperf, [load.run]
        case MixMeasurement():
            own = (load.name, load.others, load.mix, load.file, load.invalid, len(load.alone))
            runs = [*load.alone, *load.together]
    return (
        load.options,
        load.elapsed_ns,
        own,
        [
            (
                *(run.rate_qps, run.source, run.seed, run.checksum, run.cut_ns, run.stopped, run.invalid),
                dict(run.reasons),
                {name: getattr(run.queries, name).tolist() for name in QUERY_COLUMNS},
                run.queries.repeated,
            )
            for run in runs
        ],
    )


@pytest.mark.parametrize("counts", [(), (0,), (3,), (VALUES_PER_DOCUMENT + 1, 0, 2)])
def test_runs_under_load_come_back_as_they_were(store: EvaluationStore, counts: tuple[int, ...]) -> None:
    evaluation = loaded(*counts, search=True)
    assert store.save(evaluation)
    assert not store.save(evaluation)

    [found] = store.find(EvaluationFilter())

    assert plain(found) == plain(evaluation)
    assert plain(evaluation_from_json(evaluation_to_json(evaluation))) == plain(evaluation)


def test_the_gpus_of_the_instances_come_back_as_they_were(store: EvaluationStore) -> None:
    evaluation = loaded(3)
    evaluation = replace(evaluation, system=replace(evaluation.system, device=Device.gpus("2,0,0")))
    store.save(evaluation)

    [found] = store.find(EvaluationFilter())

    assert found.system.device == Device.gpus("2,0,0")
    assert evaluation_from_json(evaluation_to_json(evaluation)).system.device == Device.gpus("2,0,0")


def test_the_runs_of_a_mix_come_back_on_their_sides(store: EvaluationStore) -> None:
    evaluation = mixed(3, 2, VALUES_PER_DOCUMENT + 1, 0)
    store.save(evaluation)

    [found] = store.find(EvaluationFilter(kinds=("mix",)))

    assert plain(found) == plain(evaluation)
    assert plain(evaluation_from_json(evaluation_to_json(evaluation))) == plain(evaluation)


def test_a_mix_without_pairs_of_blocks_is_a_damage() -> None:
    document = json.loads(evaluation_to_json(mixed(1, 1)))
    text = json.dumps(document).replace('"alone": [', '"alone": [], "others_": [')
    with pytest.raises(StoreError, match="its 0 runs alone are not half of the pairs of blocks"):
        evaluation_from_json(text)
    with pytest.raises(StoreError, match="its blocks have no duration"):
        evaluation_from_json(json.dumps(document).replace('"max_duration_s": 0.5', '"max_duration_s": null'))


SERVER = ServerSeries(
    "metrics at http://$a.b/metrics",
    np.array([-5, 2**40]),
    np.array([3, 7]),
    {"requests": np.array([1.0, 2.0**60]), "memory_bytes": np.array([np.nan, 0.5])},
    "é: connection refused",
)


@pytest.mark.parametrize("search", [False, True])
def test_statistics_of_the_server_come_back_as_they_were(store: EvaluationStore, search: bool) -> None:
    evaluation = loaded(3, search=search)
    load = evaluation.measurement
    assert isinstance(load, LoadMeasurement | RateSearchMeasurement)
    if isinstance(load, RateSearchMeasurement):
        read = replace(load, probes=tuple(replace(run, server=(SERVER,)) for run in load.probes))
        evaluation = replace(evaluation, measurement=read)
    else:
        evaluation = replace(evaluation, measurement=replace(load, run=replace(load.run, server=(SERVER,))))
    store.save(evaluation)

    [found] = store.find(EvaluationFilter())

    for kept in (found, evaluation_from_json(evaluation_to_json(evaluation))):
        measured = kept.measurement
        assert isinstance(measured, LoadMeasurement | RateSearchMeasurement)
        run = measured.probes[0] if isinstance(measured, RateSearchMeasurement) else measured.run
        [series] = run.server
        assert (series.source, series.note) == (SERVER.source, SERVER.note)
        assert series.at_ns.tolist() == SERVER.at_ns.tolist()
        assert series.bound_ns.tolist() == SERVER.bound_ns.tolist()
        assert {n: str(v.tolist()) for n, v in series.figures.items()} == {
            n: str(v.tolist()) for n, v in SERVER.figures.items()
        }


def test_a_run_without_statistics_is_stored_as_before_there_were_any() -> None:
    assert '"server"' not in evaluation_to_json(loaded(3))


@pytest.mark.parametrize(
    "damage",
    [
        {"bound_ns": [3]},
        {"at_ns": ["soon", 1]},
        {"at_ns": [2**80, 1]},
        {"figures": [1, 2]},
        {"figures": {"requests": "many"}},
        {"source": 7},
        {"unknown": 1},
        None,
        "text",
    ],
)
def test_damaged_statistics_are_refused(damage: Any) -> None:
    evaluation = loaded(3)
    load = evaluation.measurement
    assert isinstance(load, LoadMeasurement)
    run = replace(load.run, server=(SERVER,))
    document = json.loads(evaluation_to_json(replace(evaluation, measurement=replace(load, run=run))))
    [series] = _found(document, "server")
    _found(document, "server")[0] = series | damage if isinstance(damage, dict) else damage
    with pytest.raises(StoreError):
        evaluation_from_json(json.dumps(document))


def _found(document: Any, key: str) -> Any:
    """The first value with this key, at any depth."""
    if isinstance(document, dict):
        if key in document:
            return document[key]
        document = list(document.values())
    found = (_found(each, key) for each in document) if isinstance(document, list) else ()
    return next((each for each in found if each is not None), None)


def test_what_loadgen_says_comes_back_as_it_was(store: EvaluationStore) -> None:
    evaluation = loaded(3, scenario=Scenario.SERVER)
    store.save(evaluation)

    [found] = store.find(EvaluationFilter())

    assert plain(found) == plain(evaluation)
    assert isinstance(found.measurement, LoadMeasurement)
    assert found.measurement.options.scenario is Scenario.SERVER
    assert plain(evaluation_from_json(evaluation_to_json(evaluation))) == plain(evaluation)


def test_queries_that_were_kept_before_batches_were_timed_are_read_as_not_told() -> None:
    old = json.loads(evaluation_to_json(loaded(VALUES_PER_DOCUMENT + 1, 0, search=True)))
    text = json.dumps(_without(old, "batch_ns"))
    assert text != json.dumps(old)

    read = evaluation_from_json(text)

    assert isinstance(read.measurement, RateSearchMeasurement)
    probes = read.measurement.probes
    assert [set(run.queries.batch_ns.tolist()) for run in probes] == [{-1}, set()]
    assert len(probes[0].queries.batch_ns) == VALUES_PER_DOCUMENT + 1


def _without(value: Any, name: str) -> Any:
    """A document without the fields of a name, wherever they are."""
    if isinstance(value, dict):
        return {key: _without(item, name) for key, item in value.items() if key != name}
    return [_without(item, name) for item in value] if isinstance(value, list) else value


def test_evaluations_are_found_by_what_was_asked(store: EvaluationStore) -> None:
    kept = {"batches": make_evaluation(), "load": loaded(2), "rate_search": loaded(2, search=True)}
    for evaluation in kept.values():
        store.save(evaluation)

    for kind, evaluation in kept.items():
        assert [each.id for each in store.find(EvaluationFilter(kinds=(kind,)))] == [evaluation.id]
    assert len(store.find(EvaluationFilter())) == 3


def test_queries_that_are_missing_are_a_damage() -> None:
    text = evaluation_to_json(loaded(3))
    assert '"query_count": 3' in text
    with pytest.raises(StoreError, match="3 of its 4 queries of a run are present"):
        evaluation_from_json(text.replace('"query_count": 3', '"query_count": 4'))
