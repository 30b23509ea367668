"""The rows of predictions, as people read them: a table for each kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from inferometer.agent.tasks.predictions import (
    NO_CLASS,
    ClassMaps,
    Detections,
    Images,
    Instances,
    Predictions,
    Texts,
    Values,
)
from inferometer.agent.tasks.run_lengths import areas
from inferometer.evaluators.drawing.predictions import SHOWN_SCORE, class_name, shown_objects
from inferometer.evaluators.kinds.batches.measurement import InputPrediction
from inferometer.evaluators.reports.base import Column, Row, Table

_INPUT = Column("input", "input")
_BOX = tuple(Column(name, name, decimals=1) for name in ("left", "top", "right", "bottom"))
_OBJECTS = (_INPUT, Column("label", "class"), Column("score", "score", decimals=4), *_BOX)
_MASKED = (*_OBJECTS, Column("mask_pixels", "pixels of the mask"))
_CLASSES = (_INPUT, Column("label", "class"), Column("share_percent", "pixels (%)", decimals=2))
_IMAGES = (_INPUT, Column("width", "width"), Column("height", "height"), Column("channels", "channels"))
_VALUES = (_INPUT, Column("count", "numbers"), Column("values", "values"))
_TEXTS = (_INPUT, Column("answer", "answer", wraps=True))
_OTHERS = (_INPUT, Column("kind", "prediction"), Column("columns", "columns"))
_SHOWN_CLASSES = 10
_SHOWN_VALUES = 6
_Rows = Iterator[dict[str, Any]]


def prediction_table(predictions: Sequence[InputPrediction], labels: Sequence[str]) -> Table:
    """Returns the table of predictions of one kind, with one or more rows for each.

    Of objects, those of a score of ``SHOWN_SCORE`` or more are in it, and of classes of pixels the ten with
    the most.

    Args:
        predictions: At least one, each of one row.
        labels: The names of the model's classes; without any, a class is its number.
    """
    kind = type(predictions[0].prediction)
    columns, rows_of = _TABLES.get(kind, (_OTHERS, _shapes))

    def rows() -> Iterator[Row]:
        for each in predictions:
            for row in rows_of(each.prediction, labels):
                yield dict.fromkeys(column.key for column in columns) | {"input": each.input_id} | row

    return Table(kind.kind, columns, rows())


def _objects(prediction: Any, labels: Sequence[str]) -> _Rows:
    places = shown_objects(prediction).tolist()
    masks = prediction.run_lengths() if isinstance(prediction, Instances) else None
    for place in places:
        box = dict(zip(("left", "top", "right", "bottom"), prediction.boxes[place].tolist(), strict=True))
        name = class_name(labels, int(prediction.classes[place]))
        row = {"label": name, "score": float(prediction.scores[place]), **box}
        if masks is not None:
            height, width = prediction.sizes[0].tolist()
            row["mask_pixels"] = areas([masks[place]], height, width)[0]
        yield row
    if hidden := len(prediction.scores) - len(places):
        yield {"label": f"… and {hidden} less certain" if places else f"{hidden}, below {SHOWN_SCORE:g}"}
    elif not places:
        yield {"label": "nothing"}


def _classes(prediction: Any, labels: Sequence[str]) -> _Rows:
    found, counts = np.unique(prediction.map(0), return_counts=True)
    order = np.argsort(-counts, kind="stable")[:_SHOWN_CLASSES]
    total = int(counts.sum())
    for place, count in zip(found[order].tolist(), counts[order].tolist(), strict=True):
        if place >= 0:
            name = class_name(labels, place)
        else:
            name = "no class" if place == NO_CLASS else "not seen by the model"
        yield {"label": name, "share_percent": 100 * count / total}


def _images(prediction: Any, labels: Sequence[str]) -> _Rows:
    del labels
    height, width, channels = prediction.pixels.shape[1:]
    yield {"width": width, "height": height, "channels": channels}


def _values(prediction: Any, labels: Sequence[str]) -> _Rows:
    values = prediction.values[0].tolist()
    named = [
        f"{labels[place]} {value:.6g}" if len(labels) == len(values) else f"{value:.6g}"
        for place, value in enumerate(values[:_SHOWN_VALUES])
    ]
    more = ", …" if len(values) > _SHOWN_VALUES else ""
    yield {"count": len(values), "values": ", ".join(named) + more}


def _texts(prediction: Any, labels: Sequence[str]) -> _Rows:
    del labels
    yield {"answer": prediction.text(0) or "(none)"}


def _shapes(prediction: Predictions, labels: Sequence[str]) -> _Rows:
    del labels
    sizes = (f"{name} {' × '.join(map(str, column.shape))}" for name, column in prediction.columns().items())
    yield {"kind": prediction.kind, "columns": ", ".join(sizes)}


_TABLES: Mapping[type[Predictions], tuple[tuple[Column, ...], Callable[[Any, Sequence[str]], _Rows]]] = {
    Detections: (_OBJECTS, _objects),
    Instances: (_MASKED, _objects),
    ClassMaps: (_CLASSES, _classes),
    Images: (_IMAGES, _images),
    Values: (_VALUES, _values),
    Texts: (_TEXTS, _texts),
}
"""The columns and rows of each kind; a plug-in's predictions are shown by the sizes of their columns."""
