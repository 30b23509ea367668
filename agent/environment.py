"""The hardware and software that a model runs on, as an evaluation records it."""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pynvml

from agent import __version__

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
    "MXNET_CUDNN_AUTOTUNE_DEFAULT",
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
"""The names of container images, where they are others than the system's."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as its driver describes it."""

    name: str
    memory_bytes: int
    uuid: str


@dataclass(frozen=True, slots=True)
class Environment:
    """The machine and the software of an agent.

    Attributes:
        hostname: The machine's name.
        architecture: The processor's architecture, such as ``x86_64``.
        cpu_model: The processor's name; empty where the system does not tell.
        logical_cores: Logical processors of the machine.
        physical_cores: Cores of the machine; None where the system does not tell.
        usable_cores: Logical processors that this process may run on.
        memory_bytes: The machine's memory.
        operating_system: Name and version.
        kernel: The kernel's release.
        python_version: The interpreter's version.
        inferscope_version: This program's version.
        frameworks: The installed version of each framework by name, and of the package that the model's
            architecture is from, if it is from one.
        gpus: The GPUs; empty where there is none, or no driver.
        gpu_driver: The GPU driver's version, or None.
        variables: Environment variables that set threads, devices, kernels and the allocator, where they are
            set.
        image_libraries: The versions of the libraries that decode and resize the model's images, by name;
            empty where it takes none.
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
    inferscope_version: str
    frameworks: Mapping[str, str]
    gpus: tuple[Gpu, ...]
    gpu_driver: str | None
    variables: Mapping[str, str]
    image_libraries: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_known(self) -> bool:
        """Whether the machine has told of itself; if not, texts are empty and numbers zero."""
        return self.usable_cores > 0


def unknown_environment(frameworks: Mapping[str, str], image_libraries: Mapping[str, str]) -> Environment:
    """Returns what is known of a machine that tells nothing of itself.

    Args:
        frameworks: What it runs the model in, as far as it tells.
        image_libraries: What the images are decoded and resized with here.
    """
    return Environment(
        hostname="",
        architecture="",
        cpu_model="",
        logical_cores=0,
        physical_cores=None,
        usable_cores=0,
        memory_bytes=0,
        operating_system="",
        kernel="",
        python_version="",
        inferscope_version=__version__,
        frameworks=dict(frameworks),
        gpus=(),
        gpu_driver=None,
        variables={},
        image_libraries=dict(image_libraries),
    )


def read_environment(
    frameworks: Mapping[str, str | None], image_libraries: Mapping[str, str] | None = None
) -> Environment:
    """Reads the facts of this machine.

    Args:
        frameworks: Those to record, with their installed versions.
        image_libraries: Those that the model's images are decoded and resized with, with their versions.
    """
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
        inferscope_version=__version__,
        frameworks={name: version for name, version in frameworks.items() if version},
        gpus=gpus,
        gpu_driver=driver,
        variables={name: os.environ[name] for name in _VARIABLES if name in os.environ},
        image_libraries=dict(image_libraries or {}),
    )


def container_architecture(machine: str) -> str:
    """Returns what container images call an architecture that the system calls ``machine``.

    It is empty where the system does not tell.
    """
    name = machine.strip().casefold()
    return _CONTAINER_ARCHITECTURES.get(name, name)


def usable_cores() -> int:
    """The number of logical processors that this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not every system has processor affinity
        return os.cpu_count() or 1


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() in {"model name", "Model", "cpu"}:
                return value.strip()
    except OSError:
        pass
    return platform.processor()


def _operating_system() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return f"{platform.system()} {platform.version()}"


def _read_gpus() -> tuple[tuple[Gpu, ...], str | None]:
    """The NVIDIA GPUs and their driver's version; nothing where there is no driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return (), None
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
    except pynvml.NVMLError:
        return (), None
    finally:
        pynvml.nvmlShutdown()
