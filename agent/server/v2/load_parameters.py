"""What a client loads a model with: the parameters of ``RepositoryModelLoad``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from inferometer.agent.hardware.device import CPU, Device, DeviceKind
from inferometer.agent.inference.predictor import Weights
from inferometer.agent.inference.session import SessionOptions
from inferometer.agent.server.v2.tensors import shown
from inferometer.manifests.errors import ConfigurationError, suggestion
from inferometer.protos.inference.v2 import grpc_service_pb2 as pb

_CONFIG = "config"
_KNOWN = ("device", "seed", "threads", "version", "weights")
_DESCRIBING = {"name", "platform", "backend", "parameters"}
"""The fields of a configuration that change nothing, and ``parameters``."""
_MAX_SEED = 2**63 - 1


@dataclass(frozen=True, slots=True)
class LoadParameters:
    """How a model of some name is to be opened; None leaves the choice of the version to the agent."""

    options: SessionOptions
    version: str | None = None


def read_load_parameters(
    parameters: Mapping[str, pb.ModelRepositoryParameter], defaults: SessionOptions
) -> LoadParameters:
    """Returns what a request specifies; ``defaults`` are the options of models that no client has loaded.

    ``weights``, ``seed``, ``threads``, ``device`` and ``version`` are parameters of the request, or of the
    ``parameters`` in the JSON of a ``config``, the only one that tritonclient sends.

    Raises:
        ConfigurationError: One is not known, or makes no sense.
    """
    found: dict[str, str] = {}
    for key, parameter in parameters.items():
        if key.startswith("file:"):
            raise ConfigurationError("a client brings no files; models are those of the agent's manifests")
        if key == _CONFIG:
            found |= _read_config(parameter.string_param)
        elif key in _KNOWN:
            found[key] = _text(parameter)
        else:
            raise ConfigurationError(
                f'unknown parameter "{shown(key)}"; {suggestion(key, (_CONFIG, *_KNOWN))}'
            )
    return _chosen(found, defaults)


def _text(parameter: pb.ModelRepositoryParameter) -> str:
    field = parameter.WhichOneof("parameter_choice")
    return "" if field in {None, "bytes_param"} else str(getattr(parameter, field))


def _read_config(text: str) -> dict[str, str]:
    """The parameters in a model configuration, as ``{"parameters": {"weights": {"string_value": …}}}``."""
    try:
        config = json.loads(text)
        if not isinstance(config, dict):
            raise ValueError("no object")
        if refused := set(config) - _DESCRIBING:
            raise ConfigurationError(
                f'config has "{shown(min(refused))}", which a client cannot change here; '
                f"allowed: {', '.join(sorted(_DESCRIBING))}"
            )
        values: Mapping[str, Any] = config.get("parameters", {})
        found = {str(key): str(value["string_value"]) for key, value in values.items()}
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise ConfigurationError(
            'config: is no model configuration as JSON; an example is {"parameters": {"weights": '
            '{"string_value": "random"}}}'
        ) from error
    for key in found:
        if key not in _KNOWN:
            raise ConfigurationError(f'config: unknown parameter "{shown(key)}"; {suggestion(key, _KNOWN)}')
    return found


def _chosen(found: Mapping[str, str], defaults: SessionOptions) -> LoadParameters:
    options = defaults
    if (weights := found.get("weights")) is not None:
        if weights not in {kind.value for kind in Weights}:
            known = ", ".join(kind.value for kind in Weights)
            raise ConfigurationError(f'weights: found "{shown(weights)}"; allowed: {known}')
        options = replace(options, weights=Weights(weights))
    if (seed := found.get("seed")) is not None:
        options = replace(options, seed=_whole("seed", seed, 0, _MAX_SEED))
    if (threads := found.get("threads")) is not None:
        options = replace(options, threads=_whole("threads", threads, 1, _MAX_SEED))
    if (device := found.get("device")) is not None:
        options = replace(options, device=_device(device))
    return LoadParameters(options, found.get("version") or None)


def _whole(name: str, text: str, least: int, most: int) -> int:
    if not re.fullmatch(r"\d{1,19}", text) or not least <= int(text) <= most:
        raise ConfigurationError(f'{name}: found "{shown(text)}"; allowed: a whole number from {least} on')
    return int(text)


def _device(text: str) -> Device:
    if text == "cpu":
        return CPU
    if found := re.fullmatch(r"gpu(?::(\d{1,4}))?", text):
        return Device(DeviceKind.GPU, int(found[1] or 0))
    raise ConfigurationError(f'device: found "{shown(text)}"; allowed: cpu, gpu or gpu:N')
