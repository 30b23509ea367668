"""VGG with 11, 13, 16 and 19 layers, without batch normalisation."""

from __future__ import annotations

from typing import ClassVar

from mxnet.gluon.model_zoo import vision
from mxnet.gluon.model_zoo.vision.vgg import vgg_spec


class VGG(vision.VGG):
    """Configurations A, B, D and E of Simonyan and Zisserman, 2014 (arXiv 1409.1556).

    Gluon's model zoo has them. Inputs are (batch, 3, 224, 224).

    Args:
        depth: 11, 13, 16 or 19 layers.
        classes: The number of logits.

    Raises:
        ValueError: There is no VGG of that depth.
    """

    implements: ClassVar[tuple[str, ...]] = ("vgg11", "vgg13", "vgg16", "vgg19")

    def __init__(self, *, depth: int, classes: int = 1000) -> None:
        if depth not in vgg_spec:
            raise ValueError(f"there is no VGG of {depth} layers, only of {', '.join(map(str, vgg_spec))}")
        layers, channels = vgg_spec[depth]
        super().__init__(layers, channels, classes=classes)
