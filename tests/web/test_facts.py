"""The facts about an evaluation on its page: what was measured, of which model and data, and on what."""

from __future__ import annotations

from inferometer.agent.hardware.environment import Weights
from inferometer.client.web.documents import facts_of
from inferometer.evaluators.evaluation import Evaluation
from tests.contract.store_fixtures import make_evaluation, make_system


def facts(evaluation: Evaluation, *told: tuple[str, str]) -> dict[str, dict[str, str]]:
    return {section["heading"]: dict(section["rows"]) for section in facts_of(evaluation, evaluation, told)}


def test_the_model_its_files_and_the_dataset_have_their_checksums() -> None:
    assert facts(make_evaluation())["Model"] == {
        "model": "DigitsCNN 1.0",
        "weights": "pretrained",
        "checksum of graph": "sha256:" + "0" * 64,
        "dataset": "digits_validation",
        "inputs of the dataset": "360",
        "checksum of the dataset": "sha256:" + "1" * 64,
    }


def test_random_weights_are_told_with_their_seed() -> None:
    drawn = make_evaluation(system=make_system(weights=Weights.RANDOM, seed=3))

    assert facts(drawn)["Model"]["weights"] == "random, seed 3"


def test_the_machine_and_the_software_are_those_of_the_run() -> None:
    found = facts(make_evaluation())

    machine, software = found["System"], found["Software"]
    assert (machine["host"], machine["CPU"], machine["memory"]) == ("Bench-1", "EPYC", "1024 GiB")
    assert (machine["GPU"], machine["GPU driver"]) == ("H100, 80 GiB", "550.1")
    assert (software["framework"], software["Python"], software["oneDNN"]) == ("MXNet 1.9.1", "3.11", "3.12")
    assert software["OMP_NUM_THREADS"] == "2"


def test_what_is_told_beside_the_options_stands_once() -> None:
    measured = facts(make_evaluation(), ("dataset", "left out"), ("loader", "2 workers"))["Measurement"]

    assert (measured["batch size"], measured["num file parts"], measured["batches"]) == ("16", "10", "3")
    assert (measured["inputs predicted"], measured["loader"]) == ("48", "2 workers")
    assert "dataset" not in measured
