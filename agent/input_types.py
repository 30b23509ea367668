"""The types of a model's input, and what preprocesses each."""

from __future__ import annotations

from agent.image_fit import MAX_PIXELS
from agent.preprocessing import ImagePreprocessor
from agent.preprocessor import Preprocessor
from agent.tensor_preprocessing import TensorPreprocessor
from manifests.inputs import ImageParameters, InputParameters, TensorParameters


def preprocessor_of(parameters: InputParameters, max_pixels: int = MAX_PIXELS) -> Preprocessor:
    """Returns what turns inputs into the tensors that a manifest describes.

    Images that have more than ``max_pixels`` are refused.
    """
    match parameters:
        case ImageParameters():
            return ImagePreprocessor(parameters, max_pixels)
        case TensorParameters():
            return TensorPreprocessor(parameters)
