"""The messages about a model: its metadata, its configuration and its statistics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from inferometer.agent.inference.stages import SystemDescription
from inferometer.agent.open_inference.codec import TensorSignature, v2_version
from inferometer.agent.serving.batching import BatchingOptions, QueuePolicy
from inferometer.agent.serving.observers import Totals
from inferometer.agent.serving.served_models import SERVE_ALL, VersionChoice, VersionPolicy
from inferometer.manifests.inputs import ImageParameters, Layout
from inferometer.protos.inference.v2 import grpc_service_pb2 as pb
from inferometer.protos.inference.v2 import model_config_pb2 as config_pb

_FORMATS: Mapping[Layout | None, config_pb.ModelInput.Format.ValueType] = {
    None: config_pb.ModelInput.FORMAT_NONE,
    Layout.CHW: config_pb.ModelInput.FORMAT_NCHW,
    Layout.HWC: config_pb.ModelInput.FORMAT_NHWC,
}
_US_PER_MS = 1000
_NS_PER_MS = 1_000_000
_MAX_UINT32 = 2**32 - 1


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
    manifest, device = description.manifest, description.device
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
                count=batching.instances,
                kind=group.KIND_GPU if device.is_gpu else group.KIND_CPU,
                gpus=[device.index] if device.is_gpu else [],
            )
        ],
        parameters={
            key: config_pb.ModelParameter(string_value=value)
            for key, value in _parameters(description).items()
        },
    )
    if batching.max_batch_size > 1 or batching.has_policies:
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

    return config_pb.ModelDynamicBatching(
        preferred_batch_size=batching.preferred_batch_sizes,
        max_queue_delay_microseconds=round(batching.max_queue_delay_ms * _US_PER_MS),
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
    requests, compute_ns = totals.requests, totals.assemble_ns + totals.predict_ns + totals.split_ns
    return pb.ModelStatistics(
        name=name,
        version=version,
        last_inference=totals.last_unix_ns // _NS_PER_MS,
        inference_count=totals.inputs,
        execution_count=totals.batches,
        inference_stats=pb.InferStatistics(
            success=_duration(requests, totals.queue_ns + compute_ns),
            fail=_duration(totals.failures, totals.failures_ns),
            queue=_duration(requests, totals.queue_ns),
            compute_input=_duration(requests, totals.assemble_ns),
            compute_infer=_duration(requests, totals.predict_ns),
            compute_output=_duration(requests, totals.split_ns),
        ),
        batch_stats=[
            pb.InferBatchStatistics(
                batch_size=size,
                compute_input=_duration(each.batches, each.assemble_ns),
                compute_infer=_duration(each.batches, each.predict_ns),
                compute_output=_duration(each.batches, each.split_ns),
            )
            for size, each in sorted(totals.by_size.items())
        ],
    )


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
    }
    if description.seed is not None:
        found["seed"] = str(description.seed)
    return found


def _duration(count: int, ns: int) -> pb.StatisticDuration:
    return pb.StatisticDuration(count=count, ns=ns)
