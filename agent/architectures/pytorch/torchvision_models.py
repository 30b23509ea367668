"""The models of torchvision, where it is installed: built, and never downloaded."""

from __future__ import annotations

import inspect
import warnings
from types import ModuleType
from typing import Any

from inferometer.agent.architectures.sources import import_package
from inferometer.manifests.errors import IMPORT_FAILURES, ArtifactError, one_line, suggestion

_QUANTIZED = "quantized_"


def build(name: str, *, initialize: bool) -> Any:
    """Builds a model of ``torchvision.models`` in a form that its published weights fit.

    ``name`` is as ``torchvision.models.list_models()`` has it. The quantized models are left out: without
    their weights they are built in float32, and would be measured as what they are not. Auxiliary classifiers
    are there, as in the published files. Evaluation does not run those of GoogLeNet and Inception v3, and
    runs those of segmentation models.

    Raises:
        ArtifactError: torchvision is not installed or cannot be used, or has no model of that name.
    """
    architecture = f"torchvision:{name}"
    torchvision: Any = import_package("torchvision", architecture)
    name = name.casefold()
    if name.startswith(_QUANTIZED):
        raise ArtifactError(f'architecture "{architecture}": quantized models are not supported')
    try:
        models = torchvision.models
        known = [model for model in models.list_models() if not model.startswith(_QUANTIZED)]
        if name not in known:
            raise ArtifactError(
                f'architecture "{architecture}": unknown torchvision model; {suggestion(name, known)}'
            )
        with warnings.catch_warnings():
            # it warns of layers that cannot be frozen without pretrained weights
            warnings.simplefilter("ignore", UserWarning)
            return models.get_model(name, weights=None, **_options(models, name, initialize=initialize))
    except IMPORT_FAILURES as error:
        raise ArtifactError(
            f'architecture "{architecture}": torchvision failed: {one_line(error)}'
        ) from error


def _options(models: ModuleType, name: str, *, initialize: bool) -> dict[str, Any]:
    options: dict[str, Any] = {}
    parameters = inspect.signature(models.get_model_builder(name)).parameters
    if "weights_backbone" in parameters:
        options["weights_backbone"] = None  # the default is to download them
    if "aux_loss" in parameters:
        options["aux_loss"] = True
    if name in {"googlenet", "inception_v3"}:
        options["aux_logits"] = True
    if name.startswith(("googlenet", "inception_v3", "vgg")):
        options["init_weights"] = initialize
    return options
