"""Every shipped model that MXNet builds in code opens with random weights and predicts."""

from __future__ import annotations

import pytest
from zoo_predictions import MODELS, check_prediction, each_model_of, opened

from inferometer.manifests.schema import ModelManifest

pytestmark = pytest.mark.usefixtures("free_memory", "thin_in_mxnet")


@each_model_of(m for m in MODELS if m.framework.name == "MXNet")
def test_a_model_with_random_weights_predicts_an_input(model: ModelManifest) -> None:
    with opened(model) as session:
        check_prediction(session, model)
