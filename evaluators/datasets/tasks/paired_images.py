"""Datasets of image enhancement: the images that a model takes, and those that it should make of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from inferometer.agent.preprocessing.image_decoder import PILLOW_ERRORS, open_image
from inferometer.agent.preprocessing.pillow_decoder import FORMATS, in_mode
from inferometer.evaluators.datasets.base import DatasetIdentity
from inferometer.evaluators.datasets.folder import read_image
from inferometer.evaluators.datasets.tasks.pairs import PairsDataset, paired
from inferometer.evaluators.datasets.truths import TargetImage, Truth
from inferometer.manifests.errors import DatasetError, InputError, one_line

INPUTS, TARGETS = "inputs", "targets"
_GREY_MODES = ("1", "L", "LA", "I", "F")


class PairedFolderDataset(PairsDataset):
    """A folder with ``inputs`` and ``targets``: images of the same path up to the suffix.

    A target is grey or in colour, as its file is; 16 bits become 8, and transparency is dropped. Its size is
    that of the model's output, such as twice the input's.

    The arguments are those of ``MaskFolderDataset``.

    Raises:
        DatasetError: An input has no target, or a target no input.
    """

    backend = "paired_folder"

    def __init__(
        self,
        root: Path,
        category: str,
        *,
        checksum: str | None = None,
        name: str | None = None,
        version: str | None = None,
    ) -> None:
        pairs = paired(root, INPUTS, TARGETS)
        super().__init__(DatasetIdentity(category, name or str(root), version, checksum, len(pairs)), pairs)

    def truth(self, path: Path) -> Callable[[], Truth]:
        """Returns what reads a target."""
        return partial(read_target, path)


def read_target(path: Path) -> TargetImage:
    """Reads the image that a model should make.

    Raises:
        DatasetError: It cannot be read, or is no image.
    """
    try:
        image = open_image(read_image(path).content, FORMATS)
        image.load()
        grey = image.mode in _GREY_MODES or image.mode.startswith("I;16")
        pixels = np.array(in_mode(image, "L" if grey else "RGB"))
    except OSError as error:
        raise DatasetError(f"target {path}: cannot be read: {error.strerror or error}") from error
    except (InputError, Image.DecompressionBombError, *PILLOW_ERRORS) as error:
        raise DatasetError(f"target {path}: {one_line(error)}") from error
    return TargetImage(pixels[..., np.newaxis] if grey else pixels)
