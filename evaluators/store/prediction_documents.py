"""Predictions as documents of the collection ``input_prediction``: one an input, with the best classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from evaluators.evaluation import Evaluation, InputPrediction
from evaluators.store.values import restored, storable, storable_text


def prediction_documents(evaluation: Evaluation, owner: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the documents of an evaluation's predictions; ``owner`` is ``evaluation_id`` and ``save_id``."""
    labels = evaluation.system.manifest.output.parameters.labels
    return (
        {
            "_id": f"{owner['save_id']}/{place}",
            **owner,
            "input_id": storable_text(prediction.input_id),
            "input_index": place,
            "expected_label": storable(prediction.expected_label),
            "features": [
                {
                    "index": index,
                    "label": labels[index] if 0 <= index < len(labels) else None,
                    "probability": storable(probability),
                }
                for index, probability in zip(
                    prediction.indices.tolist(), prediction.probabilities.tolist(), strict=True
                )
            ],
        }
        for place, prediction in enumerate(evaluation.predictions)
    )


def prediction_from_document(document: Mapping[str, Any]) -> InputPrediction:
    """Returns the prediction that a document of ``input_prediction`` holds."""
    features = document["features"]
    return InputPrediction(
        input_id=document["input_id"],
        expected_label=document["expected_label"],
        indices=np.array([feature["index"] for feature in features], np.int64),
        probabilities=np.array([restored(feature["probability"]) for feature in features], np.float32),
    )
