"""What DLBS's parameters are called here, and which have no equal, by the configurations of DLBS 0.4."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferometer.manifests.errors import ConfigurationError

FRAMEWORKS = ("mxnet", "pytorch")
"""The frameworks of DLBS that this program has, by DLBS's names, which ``framework_name`` takes too."""
FRAMEWORK, PHASE, STATUS, TRIAL, DOCKER = (
    "exp.framework",
    "exp.phase",
    "exp.status",
    "exp.trial",
    "exp.docker",
)
FAMILY = "exp.framework_family"
FRAMEWORK_TOO = ("exp.framework_id", FAMILY, "exp.framework_title")
"""What tells the framework of a configuration without ``exp.framework``, the most exact first."""
DECIDING = (FRAMEWORK, PHASE, "exp.dtype", "exp.gpus")
"""What decides whether a cell has an equal: another value would make it another experiment."""
VAR_ORDER, RERUN = "sys.plan_builder.var_order", "exp.rerun"
CONTAINER, VARIABLE = "cell.container", "cell.env."
RUNTIME_VARIABLE = "runtime.env."

NAMES: Mapping[str, str] = {
    FRAMEWORK: "framework_name",
    "exp.model": "model_name",
    "exp.model_opts": "model_opts",
    "exp.replica_batch": "batch_size",
    "exp.num_batches": "num_batches",
    "exp.num_warmup_batches": "num_warmup_batches",
    "exp.dtype": "dtype",
    "exp.device_type": "device",
    "exp.gpus": "gpus",
    "exp.num_gpus": "num_gpus",
    "exp.num_local_gpus": "num_gpus",
    "exp.data_dir": "data_dir",
    "exp.docker_image": CONTAINER,
    "runtime.launcher": "cell.launcher",
}
"""Our names of parameters that all frameworks have."""

_OF_ALL = {"data_dir": "data_dir"}
_OF_FRAMEWORKS: Mapping[str, Mapping[str, str]] = {
    "mxnet": {
        **_OF_ALL,
        "cudnn_autotune": "cudnn_benchmark",
        "input_layout": "input_layout",
        "model_layout": "model_layout",
        "workspace": "workspace",
        "preprocess_threads": "num_loader_threads",
        "prefetch_buffer": "prefetch",
    },
    "pytorch": {
        **_OF_ALL,
        "cudnn_benchmark": "cudnn_benchmark",
        "data_backend": "data_backend",
        "data_shuffle": "data_shuffle",
        "num_loader_threads": "num_loader_threads",
    },
}
_OF_TRAINING: Mapping[str, Mapping[str, str]] = {"mxnet": {"kv_store": "kv_store"}, "pytorch": {}}


def options_of(framework: str, command: str) -> Mapping[str, str]:
    """Returns our options by the parameters of a framework, such as ``mxnet.kv_store`` of training."""
    of_command = _OF_TRAINING[framework] if command == "bench training" else {}
    options = {**_OF_FRAMEWORKS[framework], **of_command, "docker_image": CONTAINER}
    return {f"{framework}.{name}": option for name, option in options.items()}


DEFAULTS: Mapping[str, Any] = {
    "exp.framework_family": "${exp.framework}",
    "exp.replica_batch": 16,
    "exp.num_batches": 100,
    "exp.num_warmup_batches": 1,
    "exp.phase": "training",
    "exp.dtype": "float32",
    "exp.gpus": "0",
    "exp.num_nodes": 1,
    "exp.docker": True,
    "exp.status": "ok",
    "exp.rerun": "never",
    "mxnet.kv_store": "device",
}
"""Values that DLBS gives where a configuration does not."""

_DERIVED = "DLBS computes it, and an evaluation here records what it ran with"
_CONDITIONS = "each evaluation records the host and its conditions"
_RANKS = "a cell is one process; a launcher, such as srun or torchrun, starts the ranks of several hosts"
_CONTAINER = "how a container starts belongs to the software of a plan"
_MONITOR = "whether a monitor samples is said where the plan runs"
NO_EQUAL: Mapping[str, str] = {
    "exp.log_file": "a plan names the folder and the log of each run itself",
    "exp.id": "each evaluation gets an id of its own",
    "exp.status_msg": "the journal of a plan has what failed and why",
    "exp.effective_batch": _DERIVED,
    "exp.num_replicas": _DERIVED,
    "exp.num_local_replicas": _DERIVED,
    "exp.data": "data is synthetic unless data_dir names a dataset",
    "exp.use_tensor_core": "the framework decides by dtype",
    "exp.num_nodes": _RANKS,
    "exp.sys_info": _CONDITIONS,
    "exp.ignore_past_errors": "batch_option says what is left out after a lack of memory",
    "exp.docker_args": _CONTAINER,
    "exp.docker_launcher": _CONTAINER,
    "exp.exp_path": "a plan names the folder of each run itself",
    "monitor.frequency": _MONITOR,
    "monitor.launcher": _MONITOR,
    "monitor.timeseries": _MONITOR,
    "monitor.pid_folder": _MONITOR,
    "monitor.backend_pid_folder": _MONITOR,
    "runtime.cuda_cache": "set cell.env.CUDA_CACHE_PATH",
    "runtime.visible_gpus": "gpus says it",
    "runtime.python": "cell.software says which interpreter runs",
}
"""Why a parameter of all frameworks has no equal."""
_FOREIGN = {
    *("tensorflow", "tensorrt", "nvcnn", "nvtfcnn", "openvino"),
    *("caffe", "caffe2", "bvlc_caffe", "nvidia_caffe", "intel_caffe"),
}

_OF_SUFFIX: Mapping[str, str] = {
    "launcher": "agent bench is the program that runs",
    "args": "options of agent bench are parameters of the plan",
    "bench_path": "agent bench is the program that runs",
    "docker_args": _CONTAINER,
    "host_libpath": "name another build with cell.software, or set cell.env.LD_LIBRARY_PATH",
    "host_python_path": "name another build with cell.software, or set cell.env.PYTHONPATH",
    "host_path": "name another build with cell.software, or set cell.env.PATH",
    "nvidia_layers": "it takes NVIDIA's build of MXNet",
    "use_dali": "NVIDIA's DALI is not supported",
    "scheduler": "agent bench starts the scheduler itself",
    "cudnn_fastest": "cudnn_benchmark includes it",
    "data_loader_only": "the command bench ingestion loads alone",
    "kv_store": "only bench training adds gradients up",
    "rendezvous": _RANKS,
    "distributed_rank": _RANKS,
    "distributed_rendezvous": _RANKS,
}


def why_no_equal(name: str) -> str | None:
    """Returns why a parameter has no equal; None for one that a plan keeps as its own."""
    if name in NO_EQUAL:
        return NO_EQUAL[name]
    namespace, _, rest = name.partition(".")
    if namespace in FRAMEWORKS:
        return _OF_SUFFIX.get(rest)
    if namespace in _FOREIGN:
        return f"there is no {namespace} here; the frameworks of DLBS that are: {', '.join(FRAMEWORKS)}"
    return None


def group_of(name: str) -> str:
    """Returns the name that a parameter without an equal is listed by: one for a foreign framework."""
    namespace = name.partition(".")[0]
    return f"{namespace}.*" if namespace in _FOREIGN else name


def why_not(name: str, value: Any) -> str | None:
    """Returns why a value of a parameter has no equal; None for one that has, and for none."""
    if name == FRAMEWORK and value and str(value).casefold() not in FRAMEWORKS:
        return f"not among the frameworks of DLBS that are here: {', '.join(FRAMEWORKS)}"
    if name == "exp.dtype" and value and value not in ("float", "float32", "float16"):
        return "dtype takes float, float32, float16 and bfloat16"
    if name == "exp.gpus" and ":" in str(value):
        return "a replica has one GPU here; separate them with commas"
    return None


_TOLD: Mapping[str, tuple[str, ...]] = {
    "exp": (
        *("proj", "framework_id", "framework_title", "framework_ver", "framework_commit", "model_title"),
        *("data_store", "device_title", "cuda", "cudnn", "node_id", "node_nic"),
    ),
    "runtime": ("EXPORT_CUDA_VISIBLE_DEVICES", "EXPORT_CUDA_CACHE_PATH"),
}
"""Further parameters of DLBS, which change no run."""
_OPTIONS = {each: name for of in FRAMEWORKS for each, name in options_of(of, "bench training").items()}
KNOWN = (
    *dict.fromkeys((*NAMES, *DEFAULTS, *NO_EQUAL, TRIAL, VAR_ORDER)),
    *(f"{namespace}.{name}" for namespace, told in _TOLD.items() for name in told),
    *dict.fromkeys((*_OPTIONS, *(f"{of}.{name}" for of in FRAMEWORKS for name in (*_OF_SUFFIX, "env")))),
)
"""The parameters of DLBS, without those of frameworks that are not here."""


def is_known(name: str) -> bool:
    """Returns whether DLBS has a parameter; those of foreign frameworks, and private ones, count as such."""
    namespace, _, rest = name.partition(".")
    return (
        name in KNOWN or namespace in _FOREIGN or rest.startswith("__") or name.startswith(RUNTIME_VARIABLE)
    )


def is_read(name: str) -> bool:
    """Returns whether a plan reads a parameter: as an option, or for how its cells run."""
    of_plan = (PHASE, STATUS, TRIAL, DOCKER, VAR_ORDER, RERUN, *(f"{each}.env" for each in FRAMEWORKS))
    return name in NAMES or name in _OPTIONS or name in of_plan or name.startswith(RUNTIME_VARIABLE)


def typing_error(name: str) -> str | None:
    """Returns the parameter of DLBS that differs from a name in one character, or in the order of two."""
    return None if is_known(name) else next((each for each in KNOWN if _is_near(name, each)), None)


def _is_near(one: str, other: str) -> bool:
    while one and other and one[0] == other[0]:
        one, other = one[1:], other[1:]
    while one and other and one[-1] == other[-1]:
        one, other = one[:-1], other[:-1]
    return max(len(one), len(other)) == 1 or (len(one) == 2 and one == other[::-1])


def ours(name: str, command: str) -> str:
    """Returns what a plan calls a parameter of DLBS, and any other name as it is.

    Args:
        name: A name that the plan itself does not have.
        command: The command of the plan.

    Raises:
        ConfigurationError: DLBS has it and a plan has no equal, or not for all frameworks alike.
    """
    if name in NAMES:
        return NAMES[name]
    if name.startswith(RUNTIME_VARIABLE):
        return VARIABLE + name.removeprefix(RUNTIME_VARIABLE)
    option = next((found for of in FRAMEWORKS if (found := options_of(of, command).get(name))), None)
    if option is not None:
        namespace = name.partition(".")[0]
        raise ConfigurationError(
            f"{name}: it is {option} here; give it, in an extension for {namespace} alone"
        )
    reason = why_no_equal(name) or (_OF_PLAN.get(name) if name in KNOWN else None)
    if reason is not None:
        raise ConfigurationError(f"{name}: has no equal here: {reason}")
    return name


_OF_PLAN: Mapping[str, str] = {
    PHASE: "the command of the plan says it",
    TRIAL: "repeat in the plan says how often a cell runs",
    RERUN: "--rerun says it",
    VAR_ORDER: "var_order in the plan says it",
    DOCKER: "cell.container names the image, and null is none",
}
