"""The contract of every trainer, for every framework that trains."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from trainer_fixtures import (
    FRAMEWORKS,
    OUTPUTS,
    batch_of,
    cross_entropy,
    manifest_of,
    options_of,
    parameters_of,
    set_parameters,
    trainer_of,
    write_architectures,
)

from inferometer.agent.architectures.sources import Architectures
from inferometer.agent.artifacts.files import resolve_model
from inferometer.agent.hardware.environment import CPU, Precision, PredictorOptions, Weights
from inferometer.agent.inference.registry import Registry
from inferometer.agent.training.trainer import OPTIMIZERS, OptimizerOptions, Trainer, TrainingBatch
from inferometer.manifests.errors import TrainingError

PLAIN_SGD = OptimizerOptions(learning_rate=0.1)
SHAPES = {
    "linear": [(3, 5), (3,)],
    "plain": [(4, 1, 3, 3), (4,), (10, 64), (10,)],
    "dropping": [(64, 5), (64,), (3, 64), (3,)],
    "normalised": [(16, 5), (16,), (16,), (16,), (3, 16), (3,)],
    "speech": [(32, 6), (32,), (5, 32), (5,)],
}
NAMES = tuple(SHAPES)


@pytest.fixture(params=FRAMEWORKS)
def framework(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_architectures(tmp_path_factory.mktemp("architectures"))


@pytest.fixture
def opened(framework: str, directory: Path):  # type: ignore[no-untyped-def]
    """Opens a trainer of the framework; see ``trainer_of``."""
    return lambda name, **options: trainer_of(framework, name, directory, **options)


def losses_of(trainer: Trainer, batch: TrainingBatch, steps: int) -> list[float]:
    placed = trainer.place(batch)
    return [trainer.step(placed).loss for _ in range(steps)]


def drawn(trainer: Trainer, seed: int = 1) -> dict[str, NDArray[np.float32]]:
    """Values for the parameters of a trainer that no initialisation has had a say in."""
    rng = np.random.default_rng(seed)
    return {n: rng.normal(0, 0.3, p.shape).astype(np.float32) for n, p in parameters_of(trainer).items()}


@pytest.mark.parametrize("name", NAMES)
def test_steps_lower_the_loss_of_a_batch_that_is_repeated(opened, name):
    with opened(name, optimizer=PLAIN_SGD) as trainer:
        assert trainer.output_shape == OUTPUTS[name]
        losses = losses_of(trainer, batch_of(name, 16), 40)

    assert all(math.isfinite(loss) for loss in losses)
    assert np.mean(losses[-5:]) < 0.9 * np.mean(losses[:5])


@pytest.mark.parametrize("name", NAMES)
def test_the_parameters_come_in_the_order_of_the_layers(opened, name):
    with opened(name) as trainer:
        parameters = parameters_of(trainer)

    assert [p.shape for p in parameters.values()] == SHAPES[name]
    assert {p.dtype for p in parameters.values()} == {np.dtype(np.float32)}


@pytest.mark.parametrize("name", ["linear", "plain"])
@pytest.mark.parametrize("samples", [1, 7, 16])
def test_the_loss_of_a_step_is_that_of_the_scores_before_it(opened, name, samples):
    batch = batch_of(name, samples)
    with opened(name, optimizer=PLAIN_SGD) as trainer:
        placed = trainer.place(batch)
        for _ in range(3):
            scores = trainer.scores(batch.inputs)
            assert scores.dtype == np.float32
            assert scores.shape == (samples, *OUTPUTS[name])
            expected = pytest.approx(cross_entropy(scores, batch.targets), rel=1e-5, abs=1e-6)
            assert trainer.step(placed).loss == expected


def test_the_loss_of_ctc_is_that_of_all_ways_to_the_labels(opened):
    batch = batch_of("speech", 2)
    inputs, targets = batch.inputs, np.array([[2, 4], [3, 3]])
    with opened("speech") as trainer:
        scores = trainer.scores(inputs).astype(np.float64)
        loss = trainer.step(trainer.place(TrainingBatch(inputs, targets))).loss

    logs = scores - np.log(np.exp(scores).sum(axis=2, keepdims=True))
    assert loss == pytest.approx(np.mean([ctc(*each) for each in zip(logs, targets, strict=True)]), rel=1e-4)


def ctc(logs: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    """The negative log probability of the labels, class 0 being the blank: the forward algorithm."""
    states = [0, *itertools.chain.from_iterable((label, 0) for label in labels)]
    reached = np.zeros(len(states))
    reached[:2] = np.exp(logs[0, states[:2]])
    for step in logs[1:]:
        before = reached.copy()
        for place, state in enumerate(states):
            ways = before[max(place - 1, 0) : place + 1].sum()
            if place > 1 and state and state != states[place - 2]:
                ways += before[place - 2]
            reached[place] = ways * np.exp(step[state])
    return float(-np.log(reached[-2:].sum()))


def test_sgd_is_what_numpy_computes(opened):
    optimizer = OptimizerOptions("sgd", learning_rate=0.2, momentum=0.8, weight_decay=0.01)
    batches = [batch_of("linear", samples, seed) for seed, samples in enumerate((8, 8, 8, 8, 3, 8))]
    with opened("linear", optimizer=optimizer) as trainer:
        weight, bias = (p.astype(np.float64) for p in parameters_of(trainer).values())
        momenta = [np.zeros_like(weight), np.zeros_like(bias)]
        for batch in batches:
            trainer.step(trainer.place(batch))
            scores = batch.inputs @ weight.T + bias
            errors = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
            errors[np.arange(len(batch)), batch.targets] -= 1
            gradients = errors.T @ batch.inputs / len(batch), errors.mean(axis=0)
            for parameter, momentum, gradient in zip((weight, bias), momenta, gradients, strict=True):
                momentum *= 0.8
                momentum += gradient + 0.01 * parameter
                parameter -= 0.2 * momentum
            found = list(parameters_of(trainer).values())
            np.testing.assert_allclose(found[0], weight, atol=1e-5)
            np.testing.assert_allclose(found[1], bias, atol=1e-5)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_lowers_the_loss(opened, name):
    rate = 0.1 if name in {"sgd", "nag"} else 0.005
    with opened("plain", optimizer=OptimizerOptions(name, learning_rate=rate)) as trainer:
        losses = losses_of(trainer, batch_of("plain", 16), 25)

    assert losses[-1] < 0.9 * losses[0]


def test_nag_without_momentum_is_plain_gradient_descent(opened):
    found = []
    for name in ("sgd", "nag"):
        with opened("linear", optimizer=OptimizerOptions(name, learning_rate=0.1, momentum=0)) as trainer:
            found.append(losses_of(trainer, batch_of("linear", 8), 5))

    np.testing.assert_allclose(found[0], found[1], rtol=1e-6)


def test_a_learning_rate_of_0_leaves_the_parameters(opened):
    with opened("plain", optimizer=OptimizerOptions(learning_rate=0)) as trainer:
        before = parameters_of(trainer)
        losses = losses_of(trainer, batch_of("plain", 8), 3)
        after = parameters_of(trainer)

    assert losses[0] == losses[1] == losses[2]
    for name, parameter in before.items():
        np.testing.assert_array_equal(after[name], parameter)


def test_equal_seeds_and_batches_give_equal_losses(opened):
    batch = batch_of("dropping", 16)
    runs = []
    for seed in (5, 5, 6):
        np.random.default_rng().random()
        with opened("dropping", seed=seed) as trainer:
            runs.append(losses_of(trainer, batch, 6))

    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_dropout_draws_anew_in_each_step(opened):
    with opened("dropping", optimizer=OptimizerOptions(learning_rate=0)) as trainer:
        losses = losses_of(trainer, batch_of("dropping", 16), 4)

    assert len(set(losses)) == 4


def test_parameters_can_be_read_and_set(opened):
    batch = batch_of("plain", 8)
    with opened("plain") as trainer:
        given = drawn(trainer)
        set_parameters(trainer, given)
        found = parameters_of(trainer)
        for name, parameter in given.items():
            np.testing.assert_array_equal(found[name], parameter)
        scores = trainer.scores(batch.inputs)
        first = next(iter(given))
        set_parameters(trainer, {first: given[first] * 2})
        assert not np.allclose(trainer.scores(batch.inputs), scores)
        set_parameters(trainer, given)
        np.testing.assert_array_equal(trainer.scores(batch.inputs), scores)


def test_scores_leave_the_training_as_it_is(opened):
    batch, others = batch_of("normalised", 16), batch_of("normalised", 64, seed=9)
    runs = []
    for looks in (False, True):
        with opened("normalised") as trainer:
            losses = []
            for _ in range(6):
                losses += losses_of(trainer, batch, 1)
                if looks:
                    trainer.scores(others.inputs)
            runs.append((losses, trainer.scores(others.inputs)))

    assert runs[0][0] == runs[1][0]
    np.testing.assert_array_equal(runs[0][1], runs[1][1])


def test_scores_are_those_of_a_prediction(opened):
    inputs = batch_of("normalised", 8).inputs
    with opened("normalised", optimizer=PLAIN_SGD) as trainer:
        losses_of(trainer, batch_of("normalised", 16), 20)
        together = trainer.scores(inputs)
        alone = np.concatenate([trainer.scores(inputs[i : i + 1]) for i in range(8)])
    np.testing.assert_allclose(together, alone, atol=1e-5)  # each with the statistics of the training

    with opened("dropping") as trainer:
        np.testing.assert_array_equal(trainer.scores(inputs), trainer.scores(inputs))


def test_a_smaller_batch_follows_and_a_placed_one_can_be_used_again(opened):
    with opened("plain") as trainer:
        large, small = (trainer.place(batch_of("plain", samples)) for samples in (16, 5))
        assert (len(large), len(small)) == (16, 5)
        start = parameters_of(trainer)
        first = trainer.step(large).loss
        trainer.step(small)
        set_parameters(trainer, start)
        assert trainer.step(large).loss == first


def test_a_placed_batch_is_a_copy(opened):
    batch = batch_of("plain", 8)
    with opened("plain", optimizer=OptimizerOptions(learning_rate=0)) as trainer:
        placed = trainer.place(batch)
        loss = trainer.step(placed).loss
        batch.inputs[:] = 0
        batch.targets[:] = 0
        assert trainer.step(placed).loss == loss


@pytest.mark.parametrize("form", ["read-only", "strided", "reversed"])
def test_places_arrays_of_any_memory_layout(opened, form):
    batch = batch_of("plain", 16)
    inputs, targets = batch.inputs, batch.targets
    if form == "read-only":
        inputs.flags.writeable = targets.flags.writeable = False
    else:
        every = slice(None, None, 2 if form == "strided" else -1)
        inputs, targets = inputs[every], targets[every]
    with opened("plain", optimizer=OptimizerOptions(learning_rate=0)) as trainer:
        expected = cross_entropy(trainer.scores(inputs), targets)
        loss = trainer.step(trainer.place(TrainingBatch(inputs, targets))).loss

    assert loss == pytest.approx(expected, rel=1e-5)


def test_a_step_has_finished_when_it_returns(opened):
    with opened("plain", optimizer=PLAIN_SGD) as trainer:
        placed = trainer.place(batch_of("plain", 512))
        for _ in range(3):
            before = parameters_of(trainer)
            trainer.step(placed)
            at_return = parameters_of(trainer)
            assert not np.array_equal(before[next(iter(before))], at_return[next(iter(before))])
            for name, parameter in parameters_of(trainer).items():
                np.testing.assert_array_equal(parameter, at_return[name])


class Ticks:
    """A clock that goes on by one in each reading."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        self.now += 1
        return self.now


def test_the_parts_of_a_step_are_parts_of_its_time(opened, monkeypatch):
    clock = Ticks()
    monkeypatch.setattr("time.perf_counter_ns", clock)
    with opened("plain") as trainer:
        placed = trainer.place(batch_of("plain", 8))
        assert trainer.step(placed).parts is None
        before = clock()
        parts = trainer.step(placed, parts=True).parts
        whole = clock() - before

    assert parts is not None
    assert min(parts.forward_ns, parts.backward_ns, parts.update_ns) > 0
    assert parts.communicate_ns == 0
    assert parts.forward_ns + parts.backward_ns + parts.communicate_ns + parts.update_ns <= whole


def test_a_step_with_its_parts_trains_as_one_without(opened):
    batch, runs = batch_of("plain", 8), []
    for parts in (False, True):
        with opened("plain") as trainer:
            placed = trainer.place(batch)
            losses = [trainer.step(placed, parts=parts).loss for _ in range(5)]
            runs.append((losses, list(parameters_of(trainer).values())))

    assert runs[0][0] == runs[1][0]
    for plain, parted in zip(runs[0][1], runs[1][1], strict=True):
        np.testing.assert_array_equal(plain, parted)


@pytest.mark.parametrize("name", ["linear", "plain", "normalised", "speech"])
def test_bfloat16_trains_with_parameters_in_float32(opened, name):
    batch, first = batch_of(name, 16), {}
    for precision in (Precision.FLOAT32, Precision.BFLOAT16):
        with opened(name, precision=precision, optimizer=PLAIN_SGD) as trainer:
            losses = losses_of(trainer, batch, 40)
            assert np.mean(losses[-5:]) < 0.9 * np.mean(losses[:5])
            assert {p.dtype for p in parameters_of(trainer).values()} == {np.dtype(np.float32)}
            assert trainer.scores(batch.inputs).dtype == np.float32
            first[precision] = losses[0]

    assert first[Precision.BFLOAT16] == pytest.approx(first[Precision.FLOAT32], rel=0.05)
    assert first[Precision.BFLOAT16] != first[Precision.FLOAT32]


def test_what_is_saved_predicts_as_the_trainer_scores(framework, opened, directory, tmp_path):
    inputs, path = batch_of("normalised", 8).inputs, tmp_path / "trained.params"
    with opened("normalised", optimizer=PLAIN_SGD) as trainer:
        losses_of(trainer, batch_of("normalised", 16), 20)
        scores = trainer.scores(inputs)
        trainer.save(path)
        path.with_name(".trained.params.part").touch()  # as a killed process leaves it
        trainer.save(path)  # over the files that are there
    assert [each.name for each in tmp_path.iterdir()] == ["trained.params"]

    manifest = manifest_of(framework, "normalised", weights=path)
    artifacts = resolve_model(manifest, framework, Architectures([directory]), random=False)
    with Registry().find(framework).load()(manifest, artifacts, PredictorOptions()) as predictor:
        (predicted,) = predictor.predict({"data": inputs}).values()
    np.testing.assert_allclose(predicted, scores, atol=1e-5)

    with opened("normalised", manifest=manifest, weights=Weights.PRETRAINED) as trainer:
        np.testing.assert_allclose(trainer.scores(inputs), scores, atol=1e-6)


def test_a_loss_that_is_not_finite_is_returned(opened):
    batch = batch_of("linear", 4)
    batch.inputs[0, 0] = np.nan
    with opened("linear") as trainer:
        assert math.isnan(trainer.step(trainer.place(batch)).loss)


def test_a_single_rank_gathers_its_own_values(opened):
    values = np.array([[1, 2], [3, 2**62 + 1]])
    with opened("linear") as trainer:
        gathered = trainer.gather(values)

    assert gathered.shape == (1, 2, 2)
    assert gathered.dtype == np.int64
    np.testing.assert_array_equal(gathered[0], values)


def test_close_can_be_repeated_and_ends_the_training(opened, tmp_path):
    with opened("linear") as trainer:
        placed = trainer.place(batch_of("linear", 4))
        trainer.close()
        trainer.close()
        for use in (
            lambda: trainer.step(placed),
            lambda: trainer.place(batch_of("linear", 4)),
            lambda: trainer.scores(batch_of("linear", 4).inputs),
            lambda: trainer.save(tmp_path / "trained.params"),
        ):
            with pytest.raises(TrainingError, match=r"Trained 1\.0: is not loaded"):
                use()
        trainer.load()
        assert math.isfinite(trainer.step(trainer.place(batch_of("linear", 4))).loss)


def test_says_its_threads_and_its_libraries(framework, directory):
    from inferometer.agent.training.trainer import open_trainer

    trainer, said = open_trainer(
        manifest_of(framework, "linear"), options_of(), Registry(), architectures=Architectures([directory])
    )
    trainer.close()

    assert said.device == CPU
    assert said.threads == trainer.threads
    assert (said.seed, said.weights) == (5, Weights.RANDOM)
    assert said.checksums["architecture"].startswith("sha256:")
    assert said.environment.libraries["BLAS"]
