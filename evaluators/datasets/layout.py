"""How images in folders become labelled samples: the same rule for a folder and for a zip of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

from manifests.errors import DatasetError, InputError

IMAGE_SUFFIXES = frozenset(
    {
        ".bmp",
        ".gif",
        ".j2k",
        ".jp2",
        ".jpeg",
        ".jpg",
        ".pgm",
        ".png",
        ".pnm",
        ".ppm",
        ".tif",
        ".tiff",
        ".webp",
    }
)
MAX_IMAGE_BYTES = 256 * 1024 * 1024
"""No encoded image is larger; what is larger is not read into memory."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where one image lies.

    Attributes:
        path: Relative to the dataset, with ``/`` between its parts.
        label: The class folder's name; None where there are no class folders.
    """

    path: str
    label: str | None

    @property
    def order(self) -> tuple[str, str]:
        """The key to sort by: the path inside the class folder, then the class.

        Names that number the images, as in ``7/0001.png``, so mix the classes, and the first samples of a
        dataset are a fair part of it.
        """
        return (self.path if self.label is None else self.path[len(self.label) + 1 :], self.label or "")


def is_image(path: str) -> bool:
    """Whether a path inside a dataset is an image's: neither it nor a folder above it is hidden."""
    parts = path.split("/")
    return PurePosixPath(path).suffix.casefold() in IMAGE_SUFFIXES and not any(
        part.startswith(".") for part in parts
    )


def arrange(paths: Iterable[str], source: str) -> list[Place]:
    """Returns the places of the images among ``paths``, in the dataset's order.

    The first folder of a path is the class. Images that all lie at the top are unlabelled.

    Args:
        paths: Relative to the dataset, with ``/`` between their parts.
        source: The dataset, for errors.

    Raises:
        DatasetError: There is no image, or some lie in class folders and others beside them.
    """
    images = [path for path in paths if is_image(path)]
    if not images:
        raise DatasetError(
            f"{source}: holds no images; accepted: a folder of class folders with images "
            f"({', '.join(sorted(suffix[1:] for suffix in IMAGE_SUFFIXES))}), or images alone"
        )
    loose = [path for path in images if "/" not in path]
    if loose and len(loose) < len(images):
        raise DatasetError(
            f"{source}: {printable(loose[0])} lies beside class folders, so that its class is unknown; "
            "move it into one of them or away"
        )
    places = (Place(path, None if loose else path.split("/", 1)[0]) for path in images)
    return sorted(places, key=lambda place: place.order)


def printable(text: str) -> str:
    """Returns a name on one line that can be stored and printed: what is no printable text is escaped."""
    text = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def too_large(path: str, size_bytes: int) -> InputError:
    """The error for an image that is larger than any image is."""
    return InputError(
        f"{printable(path)}: is {size_bytes} bytes; an image of more than {MAX_IMAGE_BYTES} is not read"
    )
