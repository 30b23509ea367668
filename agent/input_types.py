"""The types of a model's input, and what preprocesses each."""

from __future__ import annotations

from agent.preprocessing import ImagePreprocessor
from agent.preprocessor import Preprocessor
from agent.tensor_preprocessing import TensorPreprocessor
from manifests.inputs import ImageParameters, InputParameters, TensorParameters


def preprocessor_of(parameters: InputParameters) -> Preprocessor:
    """Returns what turns inputs into the tensors that a manifest describes."""
    match parameters:
        case ImageParameters():
            return ImagePreprocessor(parameters)
        case TensorParameters():
            return TensorPreprocessor(parameters)
