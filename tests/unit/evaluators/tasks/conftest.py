"""Models whose outputs the metrics of texts score."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from inferometer.manifests.schema import ModelManifest


@pytest.fixture
def model_with() -> Callable[..., ModelManifest]:
    """Returns a model with these parameters of its output."""

    def make(**parameters: object) -> ModelManifest:
        return ModelManifest.model_validate(
            {
                "name": "m",
                "framework": {"name": "ONNXRuntime"},
                "inputs": [{"type": "tensor", "parameters": {"dimensions": [4]}}],
                "output": {"type": "raw", "parameters": parameters},
                "model": {"graph_path": "m.onnx"},
            }
        )

    return make


@pytest.fixture
def text_model(model_with: Callable[..., ModelManifest]) -> ModelManifest:
    return model_with()
