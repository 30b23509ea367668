"""What the protocol tells of a model: its metadata, its configuration and its statistics."""

from __future__ import annotations

from collections.abc import Sequence

from agent.batching import BatchingOptions
from agent.description import SystemDescription
from agent.server.models.model_statistics import BatchTotals, Total, Totals
from agent.server.v2.signature import TensorSignature
from manifests.inputs import ImageParameters, Layout
from manifests.schema import ModelManifest
from protos.inference.v2 import grpc_service_pb2 as pb
from protos.inference.v2 import model_config_pb2 as config_pb

_FORMATS = {
    Layout.CHW: config_pb.ModelInput.FORMAT_NCHW,
    Layout.HWC: config_pb.ModelInput.FORMAT_NHWC,
}
_US_PER_MS = 1000


def metadata_message(
    name: str,
    versions: Sequence[str],
    manifest: ModelManifest,
    model_input: TensorSignature,
    outputs: Sequence[TensorSignature],
) -> pb.ModelMetadataResponse:
    """Returns the metadata of a model that the client calls ``name``."""
    return pb.ModelMetadataResponse(
        name=name,
        versions=versions,
        platform=_platform(manifest),
        inputs=[_tensor_metadata(model_input)],
        outputs=map(_tensor_metadata, outputs),
    )


def config_message(
    name: str,
    description: SystemDescription,
    batching: BatchingOptions,
    max_batch_size: int,
    model_input: TensorSignature,
    outputs: Sequence[TensorSignature],
) -> config_pb.ModelConfig:
    """Returns the configuration of a model that the client calls ``name``.

    Args:
        name: What the client calls it.
        description: The model and what it runs on.
        batching: How its requests are put together.
        max_batch_size: The most inputs of one request.
        model_input: What it takes.
        outputs: What it gives.
    """
    manifest, device = description.manifest, description.device
    config = config_pb.ModelConfig(
        name=name,
        platform=_platform(manifest),
        backend=_platform(manifest),
        max_batch_size=max_batch_size,
        input=[
            config_pb.ModelInput(
                name=model_input.name,
                data_type=model_input.datatype.config_type,
                dims=model_input.dimensions,
                format=_format(manifest),
            )
        ],
        output=[
            config_pb.ModelOutput(name=o.name, data_type=o.datatype.config_type, dims=o.dimensions)
            for o in outputs
        ],
        instance_group=[
            config_pb.ModelInstanceGroup(
                name=name,
                count=1,
                kind=config_pb.ModelInstanceGroup.KIND_GPU
                if device.is_gpu
                else config_pb.ModelInstanceGroup.KIND_CPU,
                gpus=[device.index] if device.is_gpu else [],
            )
        ],
        parameters={
            key: config_pb.ModelParameter(string_value=value)
            for key, value in _parameters(description).items()
        },
    )
    if batching.max_batch_size > 1:
        config.dynamic_batching.CopyFrom(_dynamic_batching(batching))
    return config


def statistics_message(name: str, version: str, totals: Totals) -> pb.ModelStatistics:
    """Returns what a model has done; ``compute_input`` is putting batches together, and so on."""
    return pb.ModelStatistics(
        name=name,
        version=version,
        last_inference=totals.last_unix_ms,
        inference_count=totals.inputs,
        execution_count=totals.batches,
        inference_stats=pb.InferStatistics(
            success=_duration(totals.success),
            fail=_duration(totals.failure),
            queue=_duration(totals.queue),
            compute_input=_duration(totals.assemble),
            compute_infer=_duration(totals.predict),
            compute_output=_duration(totals.split),
        ),
        batch_stats=[_batch(size, batches) for size, batches in sorted(totals.by_size.items())],
    )


def _platform(manifest: ModelManifest) -> str:
    return manifest.framework.name.lower()


def _tensor_metadata(tensor: TensorSignature) -> pb.ModelMetadataResponse.TensorMetadata:
    return pb.ModelMetadataResponse.TensorMetadata(
        name=tensor.name, datatype=tensor.datatype.name, shape=tensor.shape
    )


def _format(manifest: ModelManifest) -> config_pb.ModelInput.Format.ValueType:
    parameters = manifest.inputs[0].parameters
    if isinstance(parameters, ImageParameters):
        return _FORMATS[parameters.layout]
    return config_pb.ModelInput.FORMAT_NONE


def _parameters(description: SystemDescription) -> dict[str, str]:
    """What Triton has no field for."""
    found = {
        "framework": description.manifest.framework.name,
        "framework_version": description.framework_version,
        "version": description.manifest.version,
        "weights": description.weights.value,
    }
    if description.seed is not None:
        found["seed"] = str(description.seed)
    return found


def _dynamic_batching(batching: BatchingOptions) -> config_pb.ModelDynamicBatching:
    return config_pb.ModelDynamicBatching(
        preferred_batch_size=batching.preferred_batch_sizes,
        max_queue_delay_microseconds=round(batching.max_queue_delay_ms * _US_PER_MS),
        preserve_ordering=True,
        default_queue_policy=config_pb.ModelQueuePolicy(
            timeout_action=config_pb.ModelQueuePolicy.REJECT,
            allow_timeout_override=True,
            max_queue_size=batching.max_queue,
        ),
    )


def _duration(total: Total) -> pb.StatisticDuration:
    return pb.StatisticDuration(count=total.count, ns=total.total_ns)


def _batch(size: int, batches: BatchTotals) -> pb.InferBatchStatistics:
    return pb.InferBatchStatistics(
        batch_size=size,
        compute_input=_duration(batches.assemble),
        compute_infer=_duration(batches.predict),
        compute_output=_duration(batches.split),
    )
