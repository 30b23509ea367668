"""Small datasets of segmentation, image enhancement and regression."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

NUMBERS = np.array([[0, 1, 2], [3, 255, 0]], np.uint8)


def saved(path: Path, image: Image.Image, **options: Any) -> Path:
    """An image in a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **options)
    return path


def grey(numbers: Any = NUMBERS) -> Image.Image:
    """A mask in grey."""
    return Image.fromarray(np.asarray(numbers))


def colour(width: int = 3, height: int = 2, value: int = 7) -> Image.Image:
    """An image of one colour."""
    return Image.new("RGB", (width, height), (value, 0, 0))


def palette(numbers: Any = NUMBERS) -> Image.Image:
    """A mask with a palette whose colours are not its numbers."""
    image = Image.fromarray(np.asarray(numbers))
    image.putpalette([(index * 7) % 256 for index in range(768)])
    return image


def mask_folder(root: Path, *names: str) -> Path:
    """Images of 3 × 2 pixels with masks."""
    for name in names or ("b", "a", "deep/c"):
        saved(root / "images" / f"{name}.jpg", colour())
        saved(root / "masks" / f"{name}.png", palette())
    return root


def voc(root: Path, *names: str) -> Path:
    """Images and masks as VOC lays them out, and an image without a mask."""
    for name in names or ("2007_2", "2007_1", "2007_3"):
        saved(root / "JPEGImages" / f"{name}.jpg", colour())
        saved(root / "SegmentationClass" / f"{name}.png", palette())
    saved(root / "JPEGImages" / "2007_9.jpg", colour())
    return root


def listed(root: Path, name: str, *images: str) -> Path:
    """A list of images in VOC's folder."""
    path = root / "ImageSets" / "Segmentation" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{image}\n" for image in images))
    return path


def paired_folder(root: Path) -> Path:
    """An input and its target, twice as large."""
    saved(root / "inputs" / "1.jpg", colour())
    saved(root / "targets" / "1.png", colour(6, 4))
    return root


def table(root: Path, text: str = "file,x,y\n1.png,0.5,-2\n2.png,1e3,4\n") -> Path:
    """A table of two images with two numbers each."""
    for name in ("1.png", "2.png"):
        saved(root / name, colour())
    (root / "values.csv").write_text(text, encoding="utf-8")
    return root / "values.csv"
