"""The models of timm, where it is installed: built, and never downloaded."""

from __future__ import annotations

import warnings
from typing import Any

from inferometer.agent.architectures.sources import import_package
from inferometer.manifests.errors import IMPORT_FAILURES, ArtifactError, one_line, suggestion


def build(name: str, *, initialize: bool) -> Any:
    """Builds a model of timm, which always draws weights, regardless of ``initialize``.

    ``name`` is as ``timm.list_models()`` has it, and may have after a dot the tag of the pretrained weights
    that give the number of classes. Names of a hub or a folder are none.

    Raises:
        ArtifactError: timm is not installed or cannot be used, or has no model of that name.
    """
    architecture = f"timm:{name}"
    timm: Any = import_package("timm", architecture)
    try:
        known = timm.list_models()
        if name.partition(".")[0] not in known:
            raise ArtifactError(
                f'architecture "{architecture}": unknown timm model; {suggestion(name, known)}'
            )
        with warnings.catch_warnings():
            # it warns of names that it has replaced
            warnings.simplefilter("ignore", UserWarning)
            return timm.create_model(name, pretrained=False)
    except IMPORT_FAILURES as error:
        raise ArtifactError(f'architecture "{architecture}": timm failed: {one_line(error)}') from error
