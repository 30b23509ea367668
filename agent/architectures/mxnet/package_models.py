"""Builds the models of gluon's model zoo; their parameters are never downloaded."""

from __future__ import annotations

from typing import Any

from mxnet.gluon.model_zoo import vision

from inferometer.manifests.errors import ArtifactError, suggestion


def build(package: str, name: str, *, initialize: bool) -> Any:
    """Builds a model of ``mxnet.gluon.model_zoo.vision`` whose structure fits the zoo's published parameters.

    The only ``package`` is gluon. ``name`` is one that ``vision.get_model`` accepts, such as ``resnet50_v1``
    or ``mobilenet1.0``. Gluon leaves the parameters undefined, regardless of ``initialize``.

    Raises:
        ArtifactError: The zoo has no model of that name.
    """
    try:
        return vision.get_model(name, pretrained=False)
    except ValueError as error:
        # after its first line, the message lists the models; nothing else in gluon does
        known = [line.strip() for line in str(error).splitlines()[1:]]
        raise ArtifactError(
            f'architecture "{package}:{name}": unknown gluon model; {suggestion(name, known)}'
        ) from error
