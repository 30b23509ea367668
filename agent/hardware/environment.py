"""How a model runs on its device, and the hardware and software around it.

Defines the default number of threads per operator, one rule for all frameworks so that they are comparable;
finds the shared libraries that this process has loaded, with the versions that CUDA's libraries report; and
describes this process as an OpenTelemetry resource.
"""

from __future__ import annotations

import ctypes
import os
import platform
import socket
import sys
import uuid
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import psutil
import pynvml

from inferometer.agent import __version__
from inferometer.agent.hardware.allocator import SETTING, allocator_in_use
from inferometer.agent.hardware.device import CPU as CPU
from inferometer.agent.hardware.device import Device as Device
from inferometer.agent.hardware.device import DeviceKind as DeviceKind
from inferometer.manifests.errors import ConfigurationError


class Weights(str, Enum):
    """The source of a model's weights.

    ``RANDOM`` weights are drawn from a seed, for models that are built in code. They are meant for speed
    measurements only.
    """

    PRETRAINED = "pretrained"
    RANDOM = "random"


class Precision(str, Enum):
    """The numeric type used by a model that is defined in code; a model in a file has its own."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"


@dataclass(frozen=True, slots=True)
class PredictorOptions:
    """The options of a predictor.

    Attributes:
        device: The device that runs the model.
        threads: The number of threads that an operator may use on the CPU; None means the default.
        weights: The source of the weights.
        seed: The seed of random weights.
        spare_cores: The number of cores that the default number of threads leaves free, for instance for the
            load generator: between operators, a framework's threads spin and so block their cores.
        precision: The numeric type used by a model that is defined in code; see ``Predictor.casts_to``.
        cudnn_benchmark: Whether cuDNN times its algorithms for each shape and uses the fastest one; None
            keeps the framework's default. It has no effect without a GPU.
        processors: The logical processors that the model is bound to while it is loaded and predicts; empty
            for no binding.
    """

    device: Device = CPU
    threads: int | None = None
    weights: Weights = Weights.PRETRAINED
    seed: int = 0
    spare_cores: int = 0
    precision: Precision = Precision.FLOAT32
    cudnn_benchmark: bool | None = None
    processors: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.threads is not None and self.threads < 1:
            raise ConfigurationError(f"threads: found {self.threads}; allowed: 1 or more")

    @property
    def operator_threads(self) -> int:
        """The value of ``threads``, or the default, which is the same for all frameworks."""
        return self.threads or default_threads(self.spare_cores)


_MAPS = Path("/proc/self/maps")
_PROCESSORS = Path("/sys/devices/system/cpu")


def loaded_library(prefix: str, folder: Path | None = None, maps: Path = _MAPS) -> Path | None:
    """Returns the first loaded library whose file name begins with ``prefix``, in ``folder`` if given.

    Returns None if there is none, or if the system does not list loaded libraries.
    """
    with suppress(OSError):
        for line in maps.read_text(encoding="utf-8", errors="replace").splitlines():
            fields = line.split(maxsplit=5)
            path = Path(fields[5]) if len(fields) == 6 else Path()
            if path.name.startswith(prefix) and folder in {None, path.parent}:
                return path
    return None


def cuda_library_versions() -> Mapping[str, str]:
    """Returns the versions of the CUDA runtime and of cuDNN, if this process has loaded them."""
    found = {}
    for name, prefix, version_of in (
        ("CUDA runtime", "libcudart", cuda_runtime_version),
        ("cuDNN", "libcudnn.", cudnn_version),
    ):
        path = loaded_library(prefix)
        with suppress(OSError, AttributeError):  # the file is gone, or is another library
            if path is not None:
                found[name] = version_of(ctypes.CDLL(str(path)))
    return found


def cuda_runtime_version(library: Any) -> str:
    """Returns the version that ``libcudart`` reports, such as 12.4."""
    version = ctypes.c_int()
    library.cudaRuntimeGetVersion(ctypes.byref(version))
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def cudnn_version(library: Any) -> str:
    """Returns the version that ``libcudnn`` reports, such as 9.1.0."""
    library.cudnnGetVersion.restype = ctypes.c_size_t
    return readable_cudnn_version(int(library.cudnnGetVersion()))


def readable_cudnn_version(number: int) -> str:
    """Returns a cuDNN version number as text: 8902 is 8.9.2, and from cuDNN 9 on, 90100 is 9.1.0."""
    major = 10_000 if number >= 90_000 else 1000
    return f"{number // major}.{number % major // 100}.{number % 100}"


_VARIABLES = (
    # threads, where they run, and how they wait for work
    "GOMP_CPU_AFFINITY",
    "GOMP_SPINCOUNT",
    "KMP_AFFINITY",
    "KMP_BLOCKTIME",
    "MKL_NUM_THREADS",
    "MXNET_CPU_WORKER_NTHREADS",
    "MXNET_ENGINE_TYPE",
    "MXNET_OMP_MAX_THREADS",
    "OMP_NUM_THREADS",
    "OMP_PLACES",
    "OMP_PROC_BIND",
    "OMP_THREAD_LIMIT",
    "OMP_WAIT_POLICY",
    "OPENBLAS_NUM_THREADS",
    # devices, the order in which they are counted, and whether calls wait for them
    "CUDA_DEVICE_ORDER",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_VISIBLE_DEVICES",
    # the choice of kernels and their precision
    "ATEN_CPU_CAPABILITY",
    "DNNL_MAX_CPU_ISA",
    "MKL_ENABLE_INSTRUCTIONS",
    "MXNET_CUDA_ALLOW_TENSOR_CORE",
    "MXNET_CUDA_TENSOR_OP_MATH_ALLOW_CONVERSION",
    "MXNET_CUDNN_AUTOTUNE_DEFAULT",
    "MXNET_MKLDNN_ENABLED",
    "MXNET_SUBGRAPH_BACKEND",
    "NVIDIA_TF32_OVERRIDE",
    "ONEDNN_MAX_CPU_ISA",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    # the memory allocator, which can change a model's latency several times over
    "GLIBC_TUNABLES",
    "LD_PRELOAD",
    "MALLOC_ARENA_MAX",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TRIM_THRESHOLD_",
)


_CONTAINER_ARCHITECTURES = {
    "x86_64": "amd64",
    "x64": "amd64",
    "aarch64": "arm64",
    "i386": "386",
    "i686": "386",
    "armv7l": "arm",
    "powerpc64le": "ppc64le",
}
"""The names used in container images, where they differ from the system's names."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as described by its driver."""

    name: str
    memory_bytes: int
    uuid: str


@dataclass(frozen=True, slots=True)
class FrameworkDetails:
    """The properties that a framework reports about itself, as plain text; unreported ones are left out.

    Attributes:
        libraries: The versions of the libraries that do its computations, by name: ``CUDA runtime``,
            ``cuDNN``, ``oneDNN``, ``BLAS``.
        build: The features of its build, on one line.
        settings: The settings of this process that affect speed or precision, by name: ``TF32 in
            convolutions``, ``cuDNN autotuning``, ``inter-op threads``.
    """

    libraries: Mapping[str, str] = field(default_factory=dict)
    build: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)


def on_or_off(setting: bool) -> str:
    """Returns a setting as text, in the form used in ``FrameworkDetails``."""
    return "on" if setting else "off"


@dataclass(frozen=True, slots=True)
class Environment:
    """The machine and the software of an agent.

    Attributes:
        architecture: The processor's architecture, such as ``x86_64``.
        cpu_model: The processor's name; empty if unknown.
        logical_cores: The number of logical processors of the machine.
        physical_cores: The number of cores of the machine; None if unknown.
        usable_cores: The number of logical processors that this process may run on.
        operating_system: The operating system's name and version.
        kernel: The release of the kernel.
        frameworks: The installed version of each framework by name, and of the package that defines
            the model's architecture, if one does.
        gpus: The GPUs; empty if there is no GPU or no driver.
        gpu_driver: The GPU driver's version, or None.
        variables: The environment variables in effect that concern threads, devices, kernels or the
            allocator.
        image_libraries: The versions of the libraries that decode and resize the model's images, by name;
            empty for a model without images.
        libraries: See ``FrameworkDetails``; those of the framework that runs the model.
        build: See ``FrameworkDetails``; that of the framework that runs the model. MXNet's also lists what
            it was built without, as ``✖ CUDA``.
        settings: See ``FrameworkDetails``; also includes the policy of the memory allocator.
        governor: The frequency governor of the processors that this process may run on, such as
            ``performance``; several are separated by commas. Empty if the system does not report it.
    """

    hostname: str
    architecture: str
    cpu_model: str
    logical_cores: int
    physical_cores: int | None
    usable_cores: int
    memory_bytes: int
    operating_system: str
    kernel: str
    python_version: str
    inferometer_version: str
    frameworks: Mapping[str, str]
    gpus: tuple[Gpu, ...]
    gpu_driver: str | None
    variables: Mapping[str, str]
    image_libraries: Mapping[str, str] = field(default_factory=dict)
    libraries: Mapping[str, str] = field(default_factory=dict)
    build: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    governor: str = ""

    @property
    def built_with(self) -> str:
        """The features that the build has."""
        features = self.build.split(", ")
        return ", ".join(each.removeprefix("✔ ") for each in features if not each.startswith("✖ "))

    @property
    def is_known(self) -> bool:
        """Whether the machine is known; if it is not, texts are empty and numbers are zero."""
        return self.usable_cores > 0


def unknown_environment(frameworks: Mapping[str, str], image_libraries: Mapping[str, str]) -> Environment:
    """Returns the environment of an unknown machine; the libraries are those of this process."""
    texts = ("hostname", "architecture", "cpu_model", "operating_system", "kernel", "python_version")
    numbers = ("logical_cores", "usable_cores", "memory_bytes")
    unknown: dict[str, Any] = {**dict.fromkeys(texts, ""), **dict.fromkeys(numbers, 0)}
    return Environment(
        **unknown,
        physical_cores=None,
        inferometer_version=__version__,
        frameworks=dict(frameworks),
        gpus=(),
        gpu_driver=None,
        variables={},
        image_libraries=dict(image_libraries),
    )


def read_environment(
    frameworks: Mapping[str, str | None],
    image_libraries: Mapping[str, str] | None = None,
    details: FrameworkDetails | None = None,
) -> Environment:
    """Reads the environment of this machine; frameworks without a version are left out."""
    details = details or FrameworkDetails()
    gpus, driver = _read_gpus()
    return Environment(
        hostname=socket.gethostname(),
        architecture=platform.machine(),
        cpu_model=_cpu_model(),
        logical_cores=psutil.cpu_count() or 1,
        physical_cores=psutil.cpu_count(logical=False),
        usable_cores=usable_cores(),
        memory_bytes=psutil.virtual_memory().total,
        operating_system=_operating_system(),
        kernel=platform.release(),
        python_version=platform.python_version(),
        inferometer_version=__version__,
        frameworks={name: version for name, version in frameworks.items() if version},
        gpus=gpus,
        gpu_driver=driver,
        variables={name: os.environ[name] for name in _VARIABLES if name in os.environ},
        image_libraries=dict(image_libraries or {}),
        libraries=dict(details.libraries),
        build=details.build,
        settings={SETTING: allocator_in_use().value, **details.settings},
        governor=read_governor(),
    )


def container_architecture(machine: str | None = None) -> str:
    """Returns the name that container images use for a machine, by default this one; empty if unknown."""
    name = (platform.machine() if machine is None else machine).strip().casefold()
    return _CONTAINER_ARCHITECTURES.get(name, name)


def usable_processors() -> set[int]:
    """Returns the numbers of the logical processors that this process may run on."""
    try:
        return os.sched_getaffinity(0)
    except AttributeError:  # not every system has processor affinity
        return set(range(os.cpu_count() or 1))


def usable_cores() -> int:
    """Returns the number of logical processors that this process may run on."""
    return len(usable_processors())


def read_governor(processors: Path = _PROCESSORS) -> str:
    """Reads the frequency governors of the processors that this process may use; see ``Environment``."""
    found = set()
    for number in usable_processors():
        with suppress(OSError):
            path = processors / f"cpu{number}/cpufreq/scaling_governor"
            found.add(path.read_text(encoding="utf-8").strip())
    return ", ".join(sorted(found))


def _cpu_model() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() in {"model name", "Model", "cpu"}:
                return value.strip()
    return platform.processor()


def _operating_system() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return f"{platform.system()} {platform.version()}"


def _read_gpus() -> tuple[tuple[Gpu, ...], str | None]:
    """Returns the NVIDIA GPUs and their driver's version; without a driver, no GPUs and None."""
    with suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        try:
            handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
            gpus = tuple(
                Gpu(
                    name=pynvml.nvmlDeviceGetName(handle),
                    memory_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
                    uuid=pynvml.nvmlDeviceGetUUID(handle),
                )
                for handle in handles
            )
            return gpus, pynvml.nvmlSystemGetDriverVersion()
        finally:
            pynvml.nvmlShutdown()
    return (), None


def default_threads(spare_cores: int = 0, instances: int = 1) -> int:
    """Returns how many threads an operator may use on the CPU if no option specifies their number.

    This is ``OMP_NUM_THREADS`` if it is set, even for frameworks that do not read it; otherwise one thread
    per core that this process may use, divided among the ``instances`` that predict at the same time. It
    leaves ``spare_cores`` free, but is at least 1.
    """
    outermost = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()  # of nested levels
    given = int(outermost) if outermost.isdecimal() else 0
    threads = given or usable_physical_cores()
    if spare_cores:
        threads = min(threads, usable_cores() - spare_cores)
    return max(1, threads if given else threads // instances)


def pinned_processors(
    instances: int, threads: int, topology: Path = _PROCESSORS, workers: int = 1
) -> tuple[tuple[int, ...], ...]:
    """Returns disjoint sets of ``threads`` logical processors that this process may run on, one an instance.

    No set has a second logical processor of a core while another core is free. Each worker has ``instances``.

    Raises:
        ConfigurationError: There are too few processors, or the system cannot bind threads to them.
    """
    if not hasattr(os, "sched_setaffinity"):
        raise ConfigurationError("pin requires Linux, which binds threads to processors")
    usable, sets = sorted(usable_processors()), workers * instances
    if sets * threads > len(usable):
        name, factor = ("workers times ", f"{workers} × ") if workers > 1 else ("", "")
        raise ConfigurationError(
            f"pin: {name}instances times threads are {factor}{instances} × {threads} = {sets * threads}, but "
            f"only {len(usable)} cores may be used; lower one of them, or leave out pin"
        )
    seen, ordered = Counter[str](), []
    for number in usable:
        siblings = str(number)
        with suppress(OSError):
            siblings = (topology / f"cpu{number}/topology/thread_siblings_list").read_text(encoding="utf-8")
        ordered.append((seen[siblings], number))
        seen[siblings] += 1
    chosen = [number for _, number in sorted(ordered)]
    return tuple(tuple(chosen[n * threads : (n + 1) * threads]) for n in range(sets))


@contextmanager
def bound_to(processors: Collection[int]) -> Iterator[None]:
    """Binds the calling thread to processors; threads and processes that it starts inherit the binding.

    Does nothing if there are none, or if the thread is bound to them already.
    """
    before = os.sched_getaffinity(0) if processors else set()
    if before == set(processors):
        yield
        return
    os.sched_setaffinity(0, processors)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def usable_physical_cores(topology: Path = _PROCESSORS) -> int:
    """Returns the number of cores that this process may use; the logical processors of a core count once."""
    siblings = (topology / f"cpu{number}/topology/thread_siblings_list" for number in usable_processors())
    try:
        return len({path.read_text(encoding="utf-8").strip() for path in siblings})
    except OSError:  # the system does not tell the siblings
        return min(psutil.cpu_count(logical=False) or usable_cores(), usable_cores())


CLIENT_SERVICE = "inferometer"
"""The ``service.name`` of a process that evaluates."""
AGENT_SERVICE = "inferometer-agent"
"""The ``service.name`` of a served agent."""
_NAMESPACE = uuid.UUID("4d63009a-8d0f-11ee-aad7-4c796ed8e320")  # OpenTelemetry's, for service.instance.id


def process_resource(service: str = CLIENT_SERVICE, instance: str = "") -> tuple[tuple[str, str | int], ...]:
    """Returns this process's attributes according to OpenTelemetry's conventions, sorted by name.

    ``service.instance.id`` is the same on every call; ``instance`` distinguishes several services of one
    process. ``OTEL_RESOURCE_ATTRIBUTES`` and ``OTEL_SERVICE_NAME`` take precedence. The command line is left
    out, because it may contain a secret.
    """
    host, process = socket.gethostname(), psutil.Process()
    name = f"{host}/{process.pid}/{process.create_time()}/{service}/{instance}"
    found: dict[str, str | int] = {
        "host.arch": container_architecture(),
        "host.name": host,
        "os.type": sys.platform,
        "process.executable.name": os.path.basename(sys.executable),  # noqa: PTH119 - it may be empty
        "process.pid": process.pid,
        "process.runtime.name": sys.implementation.name,
        "process.runtime.version": platform.python_version(),
        "service.instance.id": str(uuid.uuid5(_NAMESPACE, name)),
        "service.name": service,
        "service.version": __version__,
    }
    return tuple(sorted((found | _configured_resource()).items()))


def _configured_resource() -> dict[str, str | int]:
    """Returns the attributes that environment variables set."""
    if not (os.environ.get("OTEL_RESOURCE_ATTRIBUTES") or os.environ.get("OTEL_SERVICE_NAME")):
        return {}  # as nearly always: this loads no library
    from opentelemetry.sdk.resources import OTELResourceDetector

    given = OTELResourceDetector().detect().attributes
    return {name: value for name, value in given.items() if isinstance(value, str)}
