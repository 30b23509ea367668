"""MXNet's ``ImageRecordIter``, which reads RecordIO, decodes with OpenCV and preprocesses in threads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.frameworks.mxnet.runtime import FAILURES, mxnet, reason
from inferometer.agent.preprocessing.preprocessor import RecordOptions, RecordReader
from inferometer.manifests.errors import ConfigurationError, DatasetError
from inferometer.manifests.inputs import (
    ColorMode,
    CropMethod,
    Decoder,
    ElementType,
    ImageParameters,
    InputParameters,
    Interpolation,
    Layout,
)

_INTERPOLATION = {Interpolation.NEAREST: 0, Interpolation.BILINEAR: 1, Interpolation.BICUBIC: 2}


class MXNetRecordReader(RecordReader):
    """Reads a ``.rec`` file; with an ``.idx`` file next to it, the whole epoch can be shuffled.

    It preprocesses like the program's own reader with OpenCV, up to float32 rounding.
    """

    def __init__(self, path: Path, count: int, parameters: InputParameters, options: RecordOptions) -> None:
        index = path.with_suffix(".idx")
        if options.shuffle and not index.exists():
            raise ConfigurationError(f"{index} does not exist; MXNet cannot shuffle a whole epoch without it")
        self._path = path
        self._count = count
        given = {"path_imgidx": str(index)} if index.exists() else {}
        try:
            self._iterator = mxnet.io.ImageRecordIter(
                path_imgrec=str(path),
                batch_size=options.batch_size,
                preprocess_threads=options.threads,
                prefetch_buffer=max(1, options.prefetch),
                shuffle=options.shuffle,
                seed=options.seed,
                round_batch=False,
                verbose=False,
                **given,
                **_preprocessing(parameters),
            )
        except FAILURES as error:
            raise self._unreadable(error) from error

    def epoch(self, out: NDArray[Any]) -> Iterator[NDArray[np.int64]]:
        target, left = mxnet.nd.from_numpy(out), self._count
        try:
            self._iterator.reset()
            for batch in self._iterator:
                batch.data[0].copyto(target)
                labels = batch.label[0].asnumpy()
                target.wait_to_read()
                # what is beyond the end of the last batch holds nothing, and pad does not say so
                yield labels[:left].astype(np.int64)
                left -= len(labels)
        except FAILURES as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: BaseException) -> DatasetError:
        return DatasetError(
            f"{self._path}: MXNet cannot read a record: {reason(error)}; use reader own, which names it"
        )

    def close(self) -> None:
        """Stops the iterator's threads."""
        del self._iterator


def _preprocessing(parameters: InputParameters) -> dict[str, Any]:
    """Returns the iterator's arguments for an input; raises ConfigurationError if it does not support it."""
    if not isinstance(parameters, ImageParameters):
        raise ConfigurationError("MXNet's iterator reads images, but the model takes tensors; use reader own")
    p = parameters
    required = {
        "decoder": (p.decoder, Decoder.OPENCV),
        "layout": (p.layout, Layout.CHW),
        "color_mode": (p.color_mode, ColorMode.RGB),
        "element_type": (p.element_type, ElementType.FLOAT32),
        "crop_method": (p.crop_method, CropMethod.CENTER),
        "keep_aspect_ratio": (p.keep_aspect_ratio, True),
    }
    for name, (found, wanted) in required.items():
        if found != wanted:
            raise ConfigurationError(
                f"MXNet's iterator preprocesses with {name} {_text(wanted)}, but the model requires "
                f"{_text(found)}; use reader own"
            )
    if p.interpolation not in _INTERPOLATION:
        raise ConfigurationError(
            f"MXNet's iterator does not resize with interpolation {p.interpolation.value}; use reader own"
        )
    mean, scale = (np.broadcast_to(each, 3).tolist() for each in (p.mean, p.scale))
    return {
        "data_shape": (3, p.height, p.width),
        "resize": round(min(p.height, p.width) / p.crop_ratio),
        "inter_method": _INTERPOLATION[p.interpolation],
        **{f"mean_{channel}": value for channel, value in zip("rgb", mean, strict=True)},
        **{f"std_{channel}": value for channel, value in zip("rgb", scale, strict=True)},
    }


def _text(value: Any) -> str:
    return str(getattr(value, "value", value)).lower()
