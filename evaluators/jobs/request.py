"""The options that requests share: a model and where it runs, its inputs, and where spans are sent.

Front ends derive their options and arguments from them, and then build a ``SystemRequest`` and a
``DatasetChoice``. Because help shows them, slow imports happen only where they are needed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from inferometer.evaluators.jobs.options import (
    ANSWER_TIMEOUT_S,
    COUNT,
    MODEL,
    NOT_NEGATIVE,
    OPEN_TIMEOUT_S,
    POSITIVE,
    SEED,
    TRACE_SAMPLE,
    Range,
    SharedMemoryUse,
    check_options,
    declared,
    given_options,
    options_of,
)
from inferometer.manifests.errors import ConfigurationError, printable

if TYPE_CHECKING:
    from inferometer.agent.hardware.environment import Precision, Weights
    from inferometer.agent.inference.given_models import GivenModel
    from inferometer.agent.inference.session import SessionOptions
    from inferometer.evaluators.datasets.opening import DatasetChoice
    from inferometer.evaluators.jobs.job import SystemRequest


_Choice = TypeVar("_Choice", bound=Enum)


def _read_weights(name: str) -> Weights:
    from inferometer.agent.hardware.environment import Weights

    return _choice(Weights, name, "weights", " or ".join(each.value for each in Weights))


def read_precision(name: str) -> Precision:
    """Returns the precision with the given name; ``float`` is float32.

    Raises:
        ConfigurationError: There is no such precision.
    """
    from inferometer.agent.hardware.environment import Precision

    text = Precision.FLOAT32.value if name.lower() == "float" else name
    return _choice(Precision, text, "precision", f"one of {', '.join(each.value for each in Precision)}")


def _read_shared_memory(name: str) -> SharedMemoryUse:
    return _choice(SharedMemoryUse, name, "shared_memory", "auto, off or on")


def _no_list(text: str) -> NoReturn:
    raise ConfigurationError(f'sample_ids is "{printable(text)}"; give a list of ids')


def _choice(kind: type[_Choice], name: str, what: str, known: str) -> _Choice:
    try:
        return kind(name.lower())
    except ValueError as error:
        raise ConfigurationError(f'unknown {what} "{name}"; give {known}') from error


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemOptions:
    """A model and where it runs, as a user gives them; the library's ``model`` may also be a file."""

    model_name: str = declared(MODEL, "Model.", "NAME", argument="model")
    model_version: str | None = declared(
        None,
        "Version or constraint.",
        "VERSION",
        argument="version",
        default_text="the highest that has the weights",
    )
    model_path: Path | None = declared(
        None,
        "Model in a file, without a manifest: .onnx, .pt2 (torch.export), .pt (TorchScript), or MXNet's "
        "symbol with its parameters beside it. It runs in this process.",
        "FILE",
        argument="model",
        reads=True,
    )
    input_shape: tuple[int, ...] | None = declared(
        None,
        "Input shape of --model_path without the batch, such as 3,224,224.",
        "SIZES",
        default_text="the file's",
    )
    framework_name: str | None = declared(
        None,
        "Framework.",
        "NAME",
        argument="framework",
        variable="AGENT_FRAMEWORK",
        default_text="the first installed one that has the model",
    )
    agent_address: str | None = declared(
        None,
        "Run on this served agent: HOST:PORT, or any, or conditions such as "
        "gpu=H100,framework=PyTorch (also model, host, arch, cpu). Several addresses with commas share a "
        "dataset. kserve://HOST:PORT[/MODEL] is any server of the Open Inference Protocol, kserve+http:// "
        "one over HTTP.",
        "AGENT",
        flags=("--agent",),
        argument="agent",
        variable="AGENT_ADDRESS",
        default_text="in this process",
    )
    open_timeout_s: float = declared(
        OPEN_TIMEOUT_S,
        "Timeout of the agent for opening the model, including downloads.",
        "S",
        within=POSITIVE,
    )
    shared_memory: SharedMemoryUse = declared(
        SharedMemoryUse.AUTO,
        "Pass inputs to a KServe server on this host through shared memory: auto where both sides "
        "can, off never; on makes it an error if they cannot.",
        choices=tuple(each.value for each in SharedMemoryUse),
        ignores_case=True,
        made=_read_shared_memory,
    )
    weights: Weights | None = declared(
        None,
        "Random weights measure speed only; they require a model that is built in code.",
        choices=("pretrained", "random"),
        ignores_case=True,
        default_text="pretrained",
        made=_read_weights,
    )
    seed: int = declared(0, "Seed of random weights and schedules.", "N", within=SEED)
    gpu: bool = declared(False, "Run on the GPU; an error if there is none.", flags=("--gpu", "--use_gpu"))
    gpu_device_id: int = declared(0, "Index of the GPU.", "N", within=NOT_NEGATIVE)
    threads: int | None = declared(
        None,
        "CPU threads per operator.",
        "N",
        within=COUNT,
        default_text="the agent's number, else OMP_NUM_THREADS, else the cores",
    )
    dtype: Precision | None = declared(
        None,
        "Type of the numbers that a model in code computes with; float is float32.",
        argument="precision",
        choices=("float", "float32", "float16", "bfloat16"),
        ignores_case=True,
        default_text="the model's own, float32",
        made=read_precision,
    )
    cudnn_benchmark: bool | None = declared(
        None,
        "Let cuDNN time its algorithms and take the fastest; no effect on a CPU.",
        default_text="the framework's",
    )

    def __post_init__(self) -> None:
        check_options(self)

    def session(self) -> SessionOptions:
        """Returns the options for opening the model."""
        from inferometer.agent.hardware.environment import CPU, Device, DeviceKind, Weights
        from inferometer.agent.inference.session import SessionOptions

        return SessionOptions(
            device=Device(DeviceKind.GPU, self.gpu_device_id) if self.gpu else CPU,
            threads=self.threads,
            weights=self.weights or Weights.PRETRAINED,
            seed=self.seed,
            precision=self.dtype,
            cudnn_benchmark=self.cudnn_benchmark,
        )

    def request(self, given: GivenModel | None = None) -> SystemRequest:
        """Returns the request, without its agents, for a model from a manifest or for a given model."""
        from inferometer.evaluators.jobs.job import SystemRequest

        return SystemRequest(
            model_name=given.manifest.name if given else self.model_name,
            model_version=self.model_version,
            framework_name=self.framework_name,
            session=self.session(),
            open_timeout_s=self.open_timeout_s,
            shared_memory=self.shared_memory,
            given=given,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSystemOptions(SystemOptions):
    """A model that predicts batches, and where and how it runs, as a user specifies them."""

    preprocess_threads: int | None = declared(
        None, "Threads that read and preprocess ahead; 0 for none.", "N", within=NOT_NEGATIVE
    )
    overlap: bool | None = declared(
        None, "Preprocess while the model predicts.", default_text="on a GPU only"
    )
    agent_timeout_s: float = declared(
        ANSWER_TIMEOUT_S, "Timeout of the agent for one batch.", "S", within=POSITIVE
    )

    def session(self) -> SessionOptions:
        """Returns the options for opening the model."""
        session = SystemOptions.session(self)
        return replace(session, preprocess_threads=self.preprocess_threads, overlap=self.overlap)

    def request(self, given: GivenModel | None = None) -> SystemRequest:
        """Returns the request, without its agents; see ``SystemOptions``."""
        return replace(SystemOptions.request(self, given), answer_timeout_s=self.agent_timeout_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetOptions:
    """The inputs of a model, as a user specifies them; the library's ``dataset`` is a name or a path."""

    synthetic: bool = declared(
        False,
        "Predict random tensors instead of a dataset's inputs, for speed only; the default of --model_path.",
    )
    sequence_length: int | None = declared(
        None,
        "Size of dynamic axes in the tensors of --synthetic.",
        "N",
        within=COUNT,
        default_text="128; of images, max_dimension or 224",
    )
    dataset_name: str | None = declared(
        None, "Dataset.", "NAME", argument="dataset", default_text="the one that the model names"
    )
    dataset_path: Path | None = declared(
        None,
        "Dataset: class folders, a zip of them, an .npz, a .rec, a Caffe LMDB, CIFAR-10, MNIST's idx, "
        "COCO's JSON, VOC's folders; "
        "with --dataset_name=ilsvrc2012_validation, the folder with its files.",
        "PATH",
        argument="dataset",
        reads=True,
    )
    data_backend: str | None = declared(
        None,
        "Format of --dataset_path: recordio, caffe_lmdb, image_folder, npz, zip, ilsvrc2012_validation, "
        "cifar10, mnist, coco or voc.",
        "NAME",
        default_text="detected",
    )
    dataset_category: str | None = declared(None, "Category of the dataset.", "NAME", default_text="any")
    sample_ids: tuple[str, ...] | None = declared(
        None,
        "Only the samples with these ids: a list with commas, or a file with one per line.",
        "FILE|LIST",
        default_text="all",
        made=_no_list,
    )

    def __post_init__(self) -> None:
        check_options(self)

    def choice(self, **more: Any) -> DatasetChoice:
        """Returns the choice; ``more`` are fields of the choice that override the ones set here."""
        from inferometer.evaluators.datasets.opening import DatasetChoice

        named = {
            "name": self.dataset_name,
            "path": self.dataset_path,
            "backend": self.data_backend,
            "category": self.dataset_category,
            "sample_ids": None if self.sample_ids is None else tuple(map(str, self.sample_ids)),
            "sequence_length": self.sequence_length,
        }
        return DatasetChoice(**named | more)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreOptions:
    """How a task counts predictions: values that replace those of a manifest's ``output.parameters``."""

    score_border: int | None = declared(
        None,
        "Pixels at each edge of an enhanced image that do not count.",
        "N",
        within=NOT_NEGATIVE,
        default_text="0",
        tasks=("image_enhancement",),
    )
    score_channels: str | None = declared(
        None,
        "Channels of enhanced images that count: all, or the luma.",
        choices=("RGB", "Y"),
        default_text="RGB",
        tasks=("image_enhancement",),
    )
    average_precision: str | None = declared(
        None,
        "Definition of the AP of objects.",
        choices=("coco", "lvis", "voc"),
        default_text="lvis for a dataset of LVIS, else coco",
        tasks=("object_detection", "instance_segmentation"),
    )
    label_threshold: float | None = declared(
        None,
        "Lowest probability at which a class is predicted, for the task multilabel_classification.",
        "P",
        within=Range(0, 1),
        default_text="0.5",
        tasks=("multilabel_classification",),
    )

    def __post_init__(self) -> None:
        check_options(self)

    def parameters(self, task: str) -> dict[str, Any]:
        """Returns the fields of ``output.parameters`` that are given.

        Raises:
            ConfigurationError: One of them is for other tasks.
        """
        given = given_options(self)
        for option in options_of(ScoreOptions):
            if option.name in given and task not in option.declared.tasks:
                of_tasks = " and ".join(option.declared.tasks)
                raise ConfigurationError(f"{option.name} is for {of_tasks}; leave it out for {task}")
        return given


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions:
    """Where spans are sent, and where users find them.

    Attributes:
        tracer_address: Where spans are sent; None sends none.
        trace_url: The URL at which users find the trace: a Jaeger server's URL, or one with ``{trace_id}``;
            None derives it from the address.
    """

    tracer_address: str | None = declared(None, "Collector that spans are sent to.", "ADDRESS")
    trace_url: str | None = declared(
        None,
        "Where a person finds traces: the URL of a Jaeger, or one with {trace_id}.",
        "URL",
        default_text="the collector's host",
    )


class SampledTraces:
    """A request for a load that traces ``trace_sample``, a share of its queries; see ``TraceOptions``."""

    __slots__ = ()
    trace_sample: float | None
    tracer_address: str | None

    @property
    def traced_share(self) -> float:
        """The share of the queries that are traced; by default some if their spans go to a collector."""
        if self.trace_sample is None:
            return TRACE_SAMPLE if self.tracer_address else 0.0
        return self.trace_sample


def trace_sample_option() -> Any:
    """Returns the field ``trace_sample`` of ``SampledTraces``."""
    return declared(
        None,
        "Trace this share of the queries.",
        "SHARE",
        within=Range(0, 1),
        default_text=f"{TRACE_SAMPLE:g} with a collector, else 0",
    )


def default_system() -> SystemRequest:
    """Returns the default model for a request that names none."""
    from inferometer.evaluators.jobs.job import SystemRequest

    return SystemRequest()


def _dataset() -> DatasetChoice:
    from inferometer.evaluators.datasets.opening import DatasetChoice

    return DatasetChoice()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest(TraceOptions):
    """A request for a model with inputs."""

    system: SystemRequest = field(default_factory=default_system)
    dataset: DatasetChoice = field(default_factory=_dataset)
