"""Predictions in readable form: a table for each kind, and drawings over the predicted images.

A drawing shows boxes, masks or enhanced images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from inferometer.agent.tasks.predictions import (
    NO_CLASS,
    ClassMaps,
    Detections,
    Images,
    Instances,
    Predictions,
    Texts,
    Values,
    areas,
    decoded,
)
from inferometer.evaluators.kinds.batches.measurement import InputPrediction
from inferometer.evaluators.reports.base import Column, Row, Table
from inferometer.manifests.errors import one_line

SHOWN_SCORE = 0.3
"""The minimum score for an object to be shown."""
SHOWN_OBJECTS = 20
"""The maximum number of objects shown per image; those with the highest scores are chosen."""
# M. Okabe and K. Ito, "Color Universal Design" (2008), without black; then the same, darker
_COLOURS = (
    (230, 159, 0),
    (86, 180, 233),
    (0, 158, 115),
    (240, 228, 66),
    (0, 114, 178),
    (213, 94, 0),
    (204, 121, 167),
)
_DARKER = 0.55
_SIDE = 640
"""Smaller images are enlarged by an integer factor to about this longer side, so that names fit."""
_MOST_SIDE = 2048
_OVERLAY = 0.55
_BACKGROUND = "background"
_UNSEEN_COLOUR = (60, 60, 60)
_LEGEND_CLASSES = 20
_NAME_CHARACTERS = 28

Colour = tuple[int, int, int]
_Font = ImageFont.ImageFont | ImageFont.FreeTypeFont


def can_be_drawn(prediction: Predictions) -> bool:
    """Returns whether a prediction of this kind can be drawn."""
    return isinstance(prediction, Detections | Instances | ClassMaps | Images)


def picture_of(prediction: Predictions, image: Image.Image, labels: Sequence[str]) -> Image.Image:
    """Returns a picture of a single prediction.

    Args:
        prediction: A prediction of one row for which ``can_be_drawn`` is True.
        image: The input image, before preprocessing.
        labels: The names of the model's classes; if empty, class numbers are shown.

    Raises:
        ValueError: The prediction cannot be drawn, or it belongs to an image of another size.
    """
    image = image.convert("RGB")
    match prediction:
        case Detections() | Instances():
            return _with_objects(prediction, image, labels)
        case ClassMaps():
            return _with_classes(prediction, image, labels)
        case Images():
            return _side_by_side(image, image_alone(prediction))
    raise ValueError(f"there is no way to draw {prediction.kind}")


def _colour_of(place: int) -> Colour:
    """Returns the colour of a class: one of seven colours safe for the colour-blind, then darker shades."""
    colour = _COLOURS[place % len(_COLOURS)]
    if place // len(_COLOURS) % 2:
        return tuple(round(part * _DARKER) for part in colour)  # type: ignore[return-value]
    return colour


def _shown_objects(prediction: Detections | Instances) -> NDArray[np.int64]:
    """Returns the indices of the objects that are shown, those with the highest scores first."""
    found: NDArray[np.int64] = np.flatnonzero(prediction.scores >= SHOWN_SCORE)
    return found[np.argsort(-prediction.scores[found], kind="stable")][:SHOWN_OBJECTS]


def class_name(labels: Sequence[str], place: int) -> str:
    """Returns the name of a class, truncated to a maximum length."""
    return one_line(labels[place], _NAME_CHARACTERS) if 0 <= place < len(labels) else str(place)


def _with_objects(
    prediction: Detections | Instances, image: Image.Image, labels: Sequence[str]
) -> Image.Image:
    places = _shown_objects(prediction)
    if isinstance(prediction, Instances):
        image = _with_masks(prediction, image, places)
    scale = _scale_of(image)
    image = _scaled(image, scale)
    draw, font = ImageDraw.Draw(image), _font(image)
    width = max(2, max(image.size) // 250)
    limits = np.array([*image.size, *image.size]) - 1
    corners = np.clip(prediction.boxes[places] * scale, 0, limits).tolist()
    boxes = list(zip(corners, places.tolist(), strict=True))
    taken: list[_Box] = []
    for (left, top, right, bottom), place in boxes:
        colour = _colour_of(int(prediction.classes[place]))
        corner = max(left, right), max(top, bottom)
        # black around the colour, so that it is seen on any image
        draw.rectangle((left - 1, top - 1, corner[0] + 1, corner[1] + 1), outline="black", width=width + 2)
        draw.rectangle((left, top, *corner), outline=colour, width=width)
    for (left, top, _, bottom), place in boxes:
        index = int(prediction.classes[place])
        text = f"{class_name(labels, index)} {prediction.scores[place]:.2f}"
        spot = _spot(draw, font, text, (left, top, bottom), image.size, taken)
        taken.append(spot)
        _write_on(draw, font, text, spot, _colour_of(index))
    return image


class _Box(NamedTuple):
    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: _Box) -> bool:
        return (
            self.left < other.right
            and other.left < self.right
            and self.top < other.bottom
            and other.top < self.bottom
        )


def _spot(
    draw: ImageDraw.ImageDraw,
    font: _Font,
    text: str,
    at: tuple[float, float, float],
    size: tuple[int, int],
    taken: Iterable[_Box],
) -> _Box:
    """Returns the position of an object's name: above, below or inside its box, but within the image."""
    width, height = _size_of(draw, font, text)
    left, top, bottom = at
    left = max(0.0, min(left, size[0] - width))
    spots = [
        _Box(left, start, left + width, start + height)
        for start in (top - height, bottom, top, bottom - height, *(top + n * height for n in range(1, 8)))
        if start >= 0 and start + height <= size[1]
    ]
    free = [spot for spot in spots if not any(spot.meets(other) for other in taken)]
    return (free or spots or [_Box(left, 0.0, left + width, float(height))])[0]


def _write_on(draw: ImageDraw.ImageDraw, font: _Font, text: str, spot: _Box, colour: Colour) -> None:
    draw.rectangle(tuple(spot), fill=colour, outline="black")
    light = 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2] > 120
    draw.text((spot.left + 2, spot.top + 1), text, fill="black" if light else "white", font=font)


def _with_masks(prediction: Instances, image: Image.Image, places: NDArray[np.int64]) -> Image.Image:
    height, width = prediction.sizes[0].tolist()
    _check_size(image, width, height)
    pixels = np.asarray(image).astype(np.float32)
    masks = prediction.run_lengths()
    for place in reversed(places.tolist()):  # the most certain ones on top
        inside = decoded(masks[place], height, width)
        colour = np.array(_colour_of(int(prediction.classes[place])), np.float32)
        pixels[inside] = pixels[inside] * (1 - _OVERLAY) + colour * _OVERLAY
    return Image.fromarray(pixels.astype(np.uint8))


def _with_classes(prediction: ClassMaps, image: Image.Image, labels: Sequence[str]) -> Image.Image:
    classes = prediction.map(0)
    _check_size(image, classes.shape[1], classes.shape[0])
    pixels = np.asarray(image).astype(np.float32)
    found, counts = np.unique(classes, return_counts=True)
    legend = []
    for place, count in sorted(zip(found.tolist(), counts.tolist(), strict=True), key=lambda each: -each[1]):
        inside = classes == place
        if place < 0:
            if place != -1:
                pixels[inside] = _UNSEEN_COLOUR
            continue
        name = class_name(labels, place)
        if name.casefold() == _BACKGROUND:
            continue
        colour = _colour_of(place)
        pixels[inside] = pixels[inside] * (1 - _OVERLAY) + np.array(colour, np.float32) * _OVERLAY
        legend.append((f"{name} {100 * count / classes.size:.1f} %", colour))
    drawn = Image.fromarray(pixels.astype(np.uint8))
    return _with_legend(_scaled(drawn, _scale_of(drawn)), legend[:_LEGEND_CLASSES])


def _with_legend(image: Image.Image, legend: Sequence[tuple[str, Colour]]) -> Image.Image:
    """Returns the image with a legend of names and colours to its right."""
    if not legend:
        return image
    font = _font(image)
    draw = ImageDraw.Draw(image)
    sizes = [_size_of(draw, font, text) for text, _ in legend]
    line = max(height for _, height in sizes) + 4
    across = max(width for width, _ in sizes) + 2 * line
    whole = Image.new("RGB", (image.width + across, max(image.height, line * len(legend) + 8)), "white")
    whole.paste(image, (0, 0))
    draw = ImageDraw.Draw(whole)
    for place, (text, colour) in enumerate(legend):
        top, left = 4 + place * line, image.width + 8
        draw.rectangle((left, top + 2, left + line - 6, top + line - 4), fill=colour, outline="black")
        draw.text((left + line, top + 1), text, fill="black", font=font)
    return whole


def _side_by_side(given: Image.Image, made: Image.Image) -> Image.Image:
    """Returns the input and the output side by side, scaled to the same height, with their original sizes."""
    height = max(min(_SIDE, _MOST_SIDE), given.height, made.height)
    titled = []
    for name, image in (("input", given), ("output", made)):
        shown = image.resize(
            (max(1, round(image.width * height / image.height)), height), Image.Resampling.NEAREST
        )
        titled.append((f"{name}, {image.width} x {image.height}", shown))
    font = _font(titled[0][1])
    line = _size_of(ImageDraw.Draw(titled[0][1]), font, "input")[1] + 8
    gap = 8
    whole = Image.new("RGB", (sum(image.width for _, image in titled) + gap, height + line), "white")
    draw, left = ImageDraw.Draw(whole), 0
    for text, image in titled:
        whole.paste(image, (left, 0))
        draw.text((left + 4, height + 2), text, fill="black", font=font)
        left += image.width + gap
    return whole


def image_alone(prediction: Images) -> Image.Image:
    """Returns a predicted image unchanged, without its input."""
    pixels = np.rint(np.clip(prediction.pixels[0], 0, 1) * 255).astype(np.uint8)
    return Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).convert("RGB")


def _check_size(image: Image.Image, width: int, height: int) -> None:
    if image.size != (width, height):
        raise ValueError(
            f"the prediction has {width} × {height} pixels, but the image {image.width} × {image.height}"
        )


def _scale_of(image: Image.Image) -> float:
    """Returns the factor by which an image is enlarged or shrunk."""
    longer = max(image.size)
    return float(max(1, round(_SIDE / longer))) if longer <= _MOST_SIDE else _MOST_SIDE / longer


def _scaled(image: Image.Image, scale: float) -> Image.Image:
    if scale == 1:
        return image.copy()
    size = max(1, round(image.width * scale)), max(1, round(image.height * scale))
    return image.resize(size, Image.Resampling.NEAREST if scale > 1 else Image.Resampling.LANCZOS)


def _font(image: Image.Image) -> _Font:
    return ImageFont.load_default(max(13, max(image.size) // 45))


def _size_of(draw: ImageDraw.ImageDraw, font: _Font, text: str) -> tuple[int, int]:
    _, _, right, bottom = draw.textbbox((0, 0), f"{text}Åg", font=font)
    cut = draw.textbbox((0, 0), "Åg", font=font)[2]
    return int(right - cut) + 6, int(bottom) + 4


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
    """Returns a table of predictions of one kind, with one or more rows for each prediction.

    It lists the objects that score at least ``SHOWN_SCORE``, and the ten classes with the most pixels.

    Args:
        predictions: At least one prediction, each of one row.
        labels: The names of the model's classes; if empty, class numbers are shown.
    """
    kind = type(predictions[0].prediction)
    columns, rows_of = _TABLES.get(kind, (_OTHERS, _shapes))

    def rows() -> Iterator[Row]:
        for each in predictions:
            for row in rows_of(each.prediction, labels):
                yield dict.fromkeys(column.key for column in columns) | {"input": each.input_id} | row

    return Table(kind.kind, columns, rows())


def _objects(prediction: Any, labels: Sequence[str]) -> _Rows:
    places = _shown_objects(prediction).tolist()
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
"""The columns and rows of each kind; a plug-in's predictions are shown as the sizes of their columns."""
