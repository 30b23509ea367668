"""Builds the models of torchvision and timm, if these are installed; their weights are never downloaded."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

from inferometer.agent.architectures.sources import import_package
from inferometer.manifests.errors import IMPORT_FAILURES, ArtifactError, one_line, suggestion

_QUANTIZED = "quantized_"


def build(package: str, name: str, *, initialize: bool) -> Any:
    """Builds a model of timm, or one of torchvision in the form that fits its published weights.

    ``name`` is one that ``torchvision.models.list_models()`` or ``timm.list_models()`` lists. torchvision's
    quantized models are not supported: without their weights they are built in float32, and measurements
    would be misleading. Auxiliary classifiers are included, as in torchvision's published files; evaluation
    runs those of segmentation models, but not those of GoogLeNet and Inception v3. A timm name may end with a
    dot and the tag of pretrained weights, which determine the number of classes; names of a hub or a folder
    are unknown. timm always draws weights, regardless of ``initialize``.

    Raises:
        ArtifactError: The package is not installed or cannot be used, or has no model of that name.
    """
    architecture = f"{package}:{name}"
    installed: Any = import_package(package, architecture)
    try:
        with warnings.catch_warnings():
            # of layers that cannot be frozen without pretrained weights, and of names that timm has replaced
            warnings.simplefilter("ignore", UserWarning)
            if package == "timm":
                _require_known(name.partition(".")[0], installed.list_models(), architecture, name)
                return installed.create_model(name, pretrained=False)
            name, models = name.casefold(), installed.models
            if name.startswith(_QUANTIZED):
                raise ArtifactError(f'architecture "{architecture}": quantized models are not supported')
            known = [model for model in models.list_models() if not model.startswith(_QUANTIZED)]
            _require_known(name, known, architecture, name)
            return models.get_model(name, weights=None, **_options(models, name, initialize=initialize))
    except IMPORT_FAILURES as error:
        raise ArtifactError(f'architecture "{architecture}": {package} failed: {one_line(error)}') from error


def _require_known(model: str, known: list[str], architecture: str, name: str) -> None:
    if model not in known:
        package = architecture.partition(":")[0]
        raise ArtifactError(
            f'architecture "{architecture}": unknown {package} model; {suggestion(name, known)}'
        )


def _options(models: Any, name: str, *, initialize: bool) -> dict[str, Any]:
    """Returns the options for a torchvision model, which differ between its builders."""
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
