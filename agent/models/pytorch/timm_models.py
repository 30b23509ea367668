"""The models of timm, where it is installed: built, and never downloaded."""

from __future__ import annotations

import warnings
from typing import Any

from agent.models.package import import_package
from manifests.errors import ArtifactError, suggestion

_FAILURES = (AttributeError, ImportError, LookupError, OSError, RuntimeError, TypeError, ValueError)


def build(name: str, *, initialize: bool) -> Any:
    """Builds a model of timm.

    Args:
        name: As ``timm.list_models()`` has it, and after a dot the tag of pretrained weights whose number of
            classes it shall have. Names of a hub or a folder are none.
        initialize: Without effect; timm always draws weights.

    Returns:
        The ``torch.nn.Module``.

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
    except _FAILURES as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ArtifactError(f'architecture "{architecture}": timm failed: {reason}') from error
