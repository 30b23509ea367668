"""The accuracy of a model while it is held by its trainer, counted as an evaluation counts it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from inferometer.agent.inference.results import InputFailure
from inferometer.agent.training.trainer import Trainer
from inferometer.evaluators.datasets.base import Dataset
from inferometer.evaluators.datasets.classes import class_indices
from inferometer.evaluators.kinds.batches.measurement import Accuracy
from inferometer.evaluators.loading.dataset_loader import UNLABELLED, DatasetLoader
from inferometer.evaluators.loading.loader import LoaderOptions
from inferometer.manifests.schema import ModelManifest

_TOP = 5


@dataclass(frozen=True, slots=True)
class Validation:
    """The result of a trained model on a dataset.

    Attributes:
        accuracy: The counts; None if no sample has a label.
        failures: The samples that could not be read or preprocessed.
    """

    accuracy: Accuracy | None
    failures: tuple[InputFailure, ...]


def validate(
    trainer: Trainer,
    dataset: Dataset,
    manifest: ModelManifest,
    batch_size: int,
    stop_requested: Callable[[], bool] = lambda: False,
) -> Validation | None:
    """Counts the samples whose class is the best one, or among the best five.

    ``class_indices`` matches classes, as in training, and of equal scores the first one is the better.
    Samples that fail, and those whose scores are not finite, are not counted.

    Args:
        trainer: The loaded trainer.
        dataset: The samples.
        manifest: The model, with its labels.
        batch_size: The samples that are run together.
        stop_requested: Called after each batch; once it returns True, the result is None.

    Raises:
        DatasetError: The model lacks the class of a sample.
        TrainingError: The framework failed.
    """
    indices = class_indices(dataset, manifest.output.parameters.labels, trainer.output_shape[-1])
    top1 = top5 = evaluated = 0
    failures: list[InputFailure] = []

    def find(label: str | None) -> int:
        return UNLABELLED if label is None else indices(label)

    options = LoaderOptions(min(batch_size, len(dataset)))
    with DatasetLoader(dataset, manifest.inputs[0].parameters, options, find) as loader:
        for batch in loader.epoch(0):
            if stop_requested():
                return None
            failures += batch.failures
            if not len(batch.inputs):
                continue
            scores = trainer.scores(batch.inputs)
            counted = (batch.labels != UNLABELLED) & np.isfinite(scores).all(axis=1)
            best = np.argsort(-scores[counted], axis=1, kind="stable")[:, :_TOP]
            hits = best == batch.labels[counted, np.newaxis]
            top1 += int(hits[:, 0].sum())
            top5 += int(hits.any(axis=1).sum())
            evaluated += len(hits)
    return Validation(Accuracy(top1, top5, evaluated) if evaluated else None, tuple(failures))
