"""The messages about a model: metadata, configuration and statistics, and how a client loads it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from google.protobuf.json_format import Parse, ParseError
from google.protobuf.message import Message

from inferometer.agent.hardware.environment import CPU, Device, Weights
from inferometer.agent.inference.session import SessionOptions
from inferometer.agent.inference.stages import SystemDescription
from inferometer.agent.open_inference.codec import TEXT_INPUT, TensorSignature, titled, v2_version
from inferometer.agent.serving.batching import MAX_INSTANCES, BatchingOptions, QueuePolicy
from inferometer.agent.serving.observers import BatchTotals, Totals
from inferometer.agent.serving.served_models import SERVE_ALL, ModelSettings, VersionChoice, VersionPolicy
from inferometer.manifests.errors import ConfigurationError, one_line, suggestion
from inferometer.manifests.inputs import ImageParameters, Layout
from inferometer.protos.inference.v2 import grpc_service_pb2 as pb
from inferometer.protos.inference.v2 import model_config_pb2 as config_pb

_FORMATS: Mapping[Layout | None, config_pb.ModelInput.Format.ValueType] = {
    None: config_pb.ModelInput.FORMAT_NONE,
    Layout.CHW: config_pb.ModelInput.FORMAT_NCHW,
    Layout.HWC: config_pb.ModelInput.FORMAT_NHWC,
}
INTRA_OP = "intra_op_thread_count"
"""The name of the threads per operator in a model configuration of Triton's backend for ONNX Runtime."""
_US_PER_MS = 1000
_NS_PER_MS = 1_000_000
_MAX_UINT32 = 2**32 - 1
_ALONE = [1]
"""The preferred sizes of batches if requests share none but have priorities."""


def metadata_message(
    name: str,
    versions: Sequence[str],
    framework: str,
    inputs: Sequence[TensorSignature],
    outputs: Sequence[TensorSignature],
) -> pb.ModelMetadataResponse:
    """Returns the metadata of a model that the client calls ``name``."""
    return pb.ModelMetadataResponse(
        name=name,
        versions=versions,
        platform=framework.lower(),
        inputs=map(_tensor_metadata, inputs),
        outputs=map(_tensor_metadata, outputs),
    )


def config_message(
    name: str,
    description: SystemDescription,
    batching: BatchingOptions,
    max_batch_size: int,
    inputs: Sequence[TensorSignature],
    outputs: Sequence[TensorSignature],
    versions: VersionPolicy = SERVE_ALL,
) -> config_pb.ModelConfig:
    """Returns the configuration of a model that the client calls ``name``."""
    manifest = description.manifest
    platform = manifest.framework.name.lower()
    of_images = (each.parameters for each in manifest.inputs)
    layouts = {each.input_layer: each.layout for each in of_images if isinstance(each, ImageParameters)}
    group = config_pb.ModelInstanceGroup
    config = config_pb.ModelConfig(
        name=name,
        platform=platform,
        backend=platform,
        version_policy=_version_policy(versions),
        max_batch_size=max_batch_size,
        input=[
            config_pb.ModelInput(
                name=each.name,
                data_type=each.datatype.config_type,
                dims=each.dimensions,
                format=_FORMATS[layouts.get(each.name)],
            )
            for each in inputs
        ],
        output=[
            config_pb.ModelOutput(name=o.name, data_type=o.datatype.config_type, dims=o.dimensions)
            for o in outputs
        ],
        instance_group=[
            group(
                name=name,
                count=count,
                kind=group.KIND_GPU if device.is_gpu else group.KIND_CPU,
                gpus=[device.index] if device.is_gpu else [],
            )
            for device, count in description.device.counts(batching.instances).items()
        ],
        parameters={
            key: config_pb.ModelParameter(string_value=value)
            for key, value in _parameters(description).items()
        },
    )
    if TEXT_INPUT in inputs:
        config.max_batch_size, config.model_transaction_policy.decoupled = 0, True
    elif batching.max_batch_size > 1 or batching.has_policies:
        config.dynamic_batching.CopyFrom(_dynamic_batching(batching))
    return config


def _dynamic_batching(batching: BatchingOptions) -> config_pb.ModelDynamicBatching:
    def message(policy: QueuePolicy) -> config_pb.ModelQueuePolicy:
        return config_pb.ModelQueuePolicy(
            timeout_action=config_pb.ModelQueuePolicy.TimeoutAction.Value(policy.timeout_action.value),
            default_timeout_microseconds=policy.default_timeout_microseconds,
            allow_timeout_override=policy.allow_timeout_override,
            max_queue_size=min(policy.max_queue_size or batching.max_queue, _MAX_UINT32),
        )

    shares = batching.max_batch_size > 1
    return config_pb.ModelDynamicBatching(
        preferred_batch_size=batching.preferred_batch_sizes if shares else _ALONE,
        max_queue_delay_microseconds=round(batching.max_queue_delay_ms * _US_PER_MS) if shares else 0,
        preserve_ordering=batching.priority_levels <= 1,
        priority_levels=batching.priority_levels,
        default_priority_level=batching.default_priority_level,
        default_queue_policy=message(batching.default_queue_policy),
        priority_queue_policy={level: message(each) for level, each in batching.priority_queue_policy},
    )


def statistics_message(name: str, version: str, totals: Totals | None) -> pb.ModelStatistics:
    """Returns the statistics of a model; ``totals`` is None if it is not loaded.

    ``compute_input`` is the time of assembling batches, ``compute_output`` that of splitting them.
    """
    totals = totals or Totals()
    parts_ns = _parts_ns(totals)
    success_ns = totals.queue_ns + sum(parts_ns.values())
    return pb.ModelStatistics(
        name=name,
        version=version,
        last_inference=totals.last_unix_ns // _NS_PER_MS,
        inference_count=totals.inputs,
        execution_count=totals.batches,
        inference_stats=pb.InferStatistics(
            **_durations(totals.requests, success=success_ns, queue=totals.queue_ns, **parts_ns),
            **_durations(totals.failures, fail=totals.failures_ns),
        ),
        batch_stats=[
            pb.InferBatchStatistics(batch_size=size, **_durations(each.batches, **_parts_ns(each)))
            for size, each in sorted(totals.by_size.items())
        ],
    )


def _parts_ns(of: Totals | BatchTotals) -> dict[str, int]:
    return {"compute_input": of.assemble_ns, "compute_infer": of.predict_ns, "compute_output": of.split_ns}


def _durations(count: int, **ns: int) -> dict[str, pb.StatisticDuration]:
    return {name: pb.StatisticDuration(count=count, ns=each) for name, each in ns.items()}


def _version_policy(policy: VersionPolicy) -> config_pb.ModelVersionPolicy:
    """Returns the policy message; it holds specific versions as integers and omits those that are text."""
    message = config_pb.ModelVersionPolicy
    match policy.choice:
        case VersionChoice.LATEST:
            return message(latest=message.Latest(num_versions=policy.latest))
        case VersionChoice.SPECIFIC:
            numbers = [int(v) for v in map(v2_version, policy.specific) if v.isdecimal()]
            return message(specific=message.Specific(versions=numbers))
    return message(all=message.All())


def _tensor_metadata(tensor: TensorSignature) -> pb.ModelMetadataResponse.TensorMetadata:
    return pb.ModelMetadataResponse.TensorMetadata(
        name=tensor.name, datatype=tensor.datatype.name, shape=tensor.shape
    )


def _parameters(description: SystemDescription) -> dict[str, str]:
    """Returns the properties for which Triton has no field."""
    found = {
        "framework": description.manifest.framework.name,
        "framework_version": description.framework_version,
        "version": v2_version(description.manifest.version),
        "manifest_version": description.manifest.version,
        "weights": description.weights.value,
        "device": str(description.device),
    }
    if description.seed is not None:
        found["seed"] = str(description.seed)
    if description.threads is not None:
        found[INTRA_OP] = str(description.threads)
    return found


_CONFIG = "config"
_KNOWN = ("device", "seed", "threads", "version", "weights")
_DESCRIBING = ("name", "platform", "backend")
"""The configuration fields without effect."""
_CHANGING = ("max_batch_size", "instance_group", "dynamic_batching", "parameters")
_OF_GROUP = ("count", "kind", "gpus")
_OF_BATCHING = ("max_queue_delay_microseconds", "preferred_batch_size")
_MAX_SEED = 2**63 - 1


@dataclass(frozen=True, slots=True)
class LoadParameters:
    """How to open a model.

    The ``settings`` have its instances, device, threads and batching, and the ``options`` of its session the
    rest. ``version`` of None leaves the choice to the agent.
    """

    options: SessionOptions
    settings: ModelSettings
    max_inputs: int
    version: str | None = None


def read_load_parameters(
    parameters: Mapping[str, pb.ModelRepositoryParameter], defaults: LoadParameters
) -> LoadParameters:
    """Returns a request's load parameters; ``defaults`` are those of a model that no client has loaded.

    ``weights``, ``seed``, ``threads``, ``device`` and ``version`` are parameters of the request, or
    ``parameters`` in the JSON of ``config``, the only parameter that tritonclient sends. The other fields of
    ``config`` set the instances and the batching.

    Raises:
        ConfigurationError: A parameter is unknown or invalid.
    """
    found: dict[str, str] = {}
    config = config_pb.ModelConfig()
    for key, parameter in parameters.items():
        if key.startswith("file:"):
            raise ConfigurationError("a client cannot send files; the agent's manifests define its models")
        if key == _CONFIG:
            config = _read_config(parameter.string_param)
            found |= _read_parameters(config)
        elif key in _KNOWN:
            found[key] = _text(parameter)
        else:
            raise ConfigurationError(
                f"{titled('unknown parameter', key)}; {suggestion(key, (_CONFIG, *_KNOWN))}"
            )
    return _chosen(found, config, defaults)


def _text(parameter: pb.ModelRepositoryParameter) -> str:
    field = parameter.WhichOneof("parameter_choice")
    return "" if field in {None, "bytes_param"} else str(getattr(parameter, field))


def _read_config(text: str) -> config_pb.ModelConfig:
    """Returns a model configuration which, as in Triton, is JSON of the message ``ModelConfig``."""
    try:
        config = Parse(text, config_pb.ModelConfig())
    except ParseError as error:
        raise ConfigurationError(
            f"config: is not a model configuration in JSON: {one_line(error, 120)}; an example is "
            '{"max_batch_size": 8, "dynamic_batching": {}, "instance_group": [{"count": 2}]}'
        ) from error
    _check_fields(config, "", (*_DESCRIBING, *_CHANGING))
    _check_fields(config.dynamic_batching, "dynamic_batching.", _OF_BATCHING)
    for group in config.instance_group:
        _check_fields(group, "instance_group.", _OF_GROUP)
    return config


def _check_fields(message: Message, where: str, allowed: Sequence[str]) -> None:
    """Raises ConfigurationError if a message has a field that a client cannot change."""
    for field, _ in message.ListFields():
        if field.name not in allowed:
            raise ConfigurationError(
                f"{titled('config has', where + field.name)}, which a client cannot change here; "
                f"allowed: {', '.join(allowed)}"
            )


def _read_parameters(config: config_pb.ModelConfig) -> dict[str, str]:
    """Returns a model configuration's parameters: ``{"parameters": {"weights": {"string_value": …}}}``."""
    found: dict[str, str] = {}
    for key, parameter in config.parameters.items():
        name = "threads" if key == INTRA_OP else key
        if name not in _KNOWN:
            raise ConfigurationError(
                f"config: {titled('unknown parameter', key)}; {suggestion(key, (*_KNOWN, INTRA_OP))}"
            )
        if name in found:
            raise ConfigurationError(f"config: has both threads and {INTRA_OP}; give one of them")
        found[name] = parameter.string_value
    return found


def _chosen(
    found: Mapping[str, str], config: config_pb.ModelConfig, defaults: LoadParameters
) -> LoadParameters:
    options, settings = defaults.options, defaults.settings
    if (weights := found.get("weights")) is not None:
        if weights not in {kind.value for kind in Weights}:
            known = ", ".join(kind.value for kind in Weights)
            raise ConfigurationError(f"weights: {titled('found', weights)}; allowed: {known}")
        options = replace(options, weights=Weights(weights))
    if (seed := found.get("seed")) is not None:
        options = replace(options, seed=_whole("seed", seed, 0, _MAX_SEED))
    if (threads := found.get("threads")) is not None:
        number = _whole("threads", threads, 1, _MAX_SEED)
        settings = replace(settings, threads=number, divided_by=None)
    if (device := found.get("device")) is not None:
        settings = replace(settings, device=_device(device))
    if groups := config.instance_group:
        settings = _placed(groups, settings)
    settings, max_inputs = _batching(config, settings, defaults.max_inputs)
    return LoadParameters(options, settings, max_inputs, found.get("version") or None)


def _placed(groups: Sequence[config_pb.ModelInstanceGroup], settings: ModelSettings) -> ModelSettings:
    """Returns the settings with the instances of the groups; as in Triton, a group has one by default.

    A group with ``gpus`` has as many on each of them, and the instances of all groups take them in turn.
    """
    of_gpus = [(group.count or 1, gpu) for group in groups for gpu in group.gpus]
    in_turn = (gpu for turn in range(MAX_INSTANCES) for number, gpu in of_gpus if turn < number)
    taken = list(islice(in_turn, MAX_INSTANCES + 1))  # more are refused
    if of_gpus:
        alike = len({number for number, _ in of_gpus}) == 1  # so that each turn is the same
        indices = taken[: len(of_gpus)] if alike else taken
        settings = replace(settings, device=Device.gpus(",".join(map(str, indices))))
    fitting = ("KIND_AUTO", "KIND_GPU" if settings.device.is_gpu else "KIND_CPU")
    wrong = {config_pb.ModelInstanceGroup.Kind.Name(group.kind) for group in groups}.difference(fitting)
    if wrong or (len(groups) > 1 and not all(group.gpus for group in groups)):
        what = f"{min(wrong)}, but the model is on {settings.device}" if wrong else f"{len(groups)} groups"
        raise ConfigurationError(
            f"config: instance_group has {what}; give one count, and the device as the parameter device, or "
            "gpus in each group"
        )
    return settings.with_instances(len(taken) or groups[0].count or 1)


def _batching(
    config: config_pb.ModelConfig, settings: ModelSettings, max_inputs: int
) -> tuple[ModelSettings, int]:
    """Returns the settings with the batching of a model configuration, and the most inputs of a request.

    As in Triton, requests share a batch only if there is ``dynamic_batching``, which may be empty, but not
    if it prefers batches of 1 and has no delay, as that of priorities alone. If they share none,
    ``max_batch_size`` limits the inputs of a request. As everywhere in protobuf, 0 is the same as none.
    """
    size, dynamic, batching = config.max_batch_size, config.dynamic_batching, settings.batching
    if not 0 <= size <= max_inputs:
        raise ConfigurationError(
            f"config: max_batch_size is {size}; allowed: 0 to --max_inputs, {max_inputs}"
        )
    is_alone = dynamic.preferred_batch_size == _ALONE and not dynamic.max_queue_delay_microseconds
    if is_alone or size == 1 or (size and not config.HasField("dynamic_batching")):
        alone = replace(batching, max_batch_size=1, max_queue_delay_ms=0.0, preferred_batch_sizes=())
        return replace(settings, batching=alone), size or max_inputs
    if config.HasField("dynamic_batching"):
        batching = replace(
            batching,
            max_batch_size=size or batching.max_batch_size,
            max_queue_delay_ms=dynamic.max_queue_delay_microseconds / _US_PER_MS,
            preferred_batch_sizes=tuple(dynamic.preferred_batch_size),
        )
        if batching.max_batch_size == 1:
            raise ConfigurationError("config: dynamic_batching requires a max_batch_size of at least 2")
    return replace(settings, batching=batching), max_inputs


def _whole(name: str, text: str, least: int, most: int) -> int:
    if not re.fullmatch(r"\d{1,19}", text) or not least <= int(text) <= most:
        raise ConfigurationError(f"{name}: {titled('found', text)}; allowed: a whole number from {least} on")
    return int(text)


def _device(text: str) -> Device:
    if text == "cpu":
        return CPU
    if found := re.fullmatch(r"gpu(?::(\d{1,4}(?:,\d{1,4}){0,63}))?", text):
        return Device.gpus(found[1] or "0")
    raise ConfigurationError(f"device: {titled('found', text)}; allowed: cpu, gpu or gpu:N,N")
