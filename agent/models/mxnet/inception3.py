"""Inception v3."""

from __future__ import annotations

from typing import ClassVar

from mxnet.gluon.model_zoo import vision


class Inception3(vision.Inception3):
    """The network of Szegedy et al., 2015 (arXiv 1512.00567); 23,834,568 parameters that are trained.

    Gluon's model zoo has it, without the classifier that helps training. Inputs are (batch, 3, 299, 299).
    """

    implements: ClassVar[tuple[str, ...]] = ("inception3",)

    def __init__(self, *, classes: int = 1000) -> None:
        super().__init__(classes=classes)
