"""The loader of random data: full batches, the same for a seed, drawn before they are asked for."""

from __future__ import annotations

import numpy as np
import pytest

from inferometer.evaluators.loading import loader
from inferometer.evaluators.loading.loader import MOST_BATCHES, SyntheticLoader
from inferometer.evaluators.loading.options import LoaderOptions
from inferometer.manifests.errors import ConfigurationError
from inferometer.manifests.inputs import ImageParameters, TensorElementType, TensorParameters

PARAMETERS = ImageParameters(dimensions=(3, 4, 4))


def made(batches: int = 3, **given: object) -> SyntheticLoader:
    chosen = {"fixed": given.pop("fixed", False), "label_length": given.pop("label_length", None)}
    return SyntheticLoader(PARAMETERS, LoaderOptions(5, **given), classes=7, batches=batches, **chosen)


def test_batches_are_full_and_of_the_models_type() -> None:
    loader = made()

    batches = list(loader.epoch(0))

    assert loader.batches == len(batches) == 3
    for batch in batches:
        assert (batch.inputs.shape, batch.inputs.dtype) == ((5, 3, 4, 4), np.float32)
        assert (batch.labels.shape, batch.labels.dtype) == ((5,), np.int64)
        assert 0 <= batch.labels.min() <= batch.labels.max() < 7
        assert (batch.read_ns, batch.preprocess_ns, batch.read_bytes) == (0, 0, 0)
    assert len({batch.inputs.tobytes() for batch in batches}) == 3


def test_the_seed_and_the_rank_draw_them() -> None:
    def content(**given: int) -> tuple[bytes, bytes]:
        first = next(iter(made(**given).epoch(0)))
        return first.inputs.tobytes(), first.labels.tobytes()

    assert content(seed=1) == content(seed=1)
    drawn = [content(seed=1), content(seed=2), content(seed=1, ranks=2, rank=1)]
    for column in zip(*drawn, strict=True):
        assert len(set(column)) == 3


def test_a_fixed_batch_is_the_same_memory_again_and_again() -> None:
    loader = made(fixed=True)

    assert len({id(batch) for number in range(3) for batch in loader.epoch(number)}) == 1


def test_drawn_batches_follow_again() -> None:
    loader = made(batches=MOST_BATCHES + 1)
    batches = [batch for number in (0, 1) for batch in loader.epoch(number)]

    assert len({id(batch) for batch in batches}) == MOST_BATCHES
    assert batches[0] is batches[MOST_BATCHES]


def test_memory_bounds_how_many_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    batch_bytes = 5 * 48 * 4
    monkeypatch.setattr(loader, "MOST_BYTES", 2 * batch_bytes + 1)

    assert len({id(batch) for batch in made(batches=6).epoch(0)}) == 2


def test_labels_of_ctc_are_sequences_without_the_blank() -> None:
    [first, *_] = made(label_length=9).epoch(0)

    assert first.labels.shape == (5, 9)
    assert first.labels.min() >= 1
    assert first.labels.max() <= 6


def test_tensors_have_whole_numbers_where_the_model_takes_them() -> None:
    parameters = TensorParameters(dimensions=(6,), element_type=TensorElementType.INT64)
    [batch] = SyntheticLoader(parameters, LoaderOptions(2), classes=2, batches=1).epoch(0)

    assert batch.inputs.dtype == np.int64
    assert set(batch.inputs.ravel().tolist()) <= {0, 1}


@pytest.mark.parametrize(("classes", "batches", "length"), [(0, 1, None), (1, 1, 4), (2, 0, None)])
def test_what_cannot_be_drawn_is_refused(classes: int, batches: int, length: int | None) -> None:
    with pytest.raises(ConfigurationError, match="cannot be drawn; at least"):
        SyntheticLoader(PARAMETERS, LoaderOptions(2), classes=classes, batches=batches, label_length=length)
