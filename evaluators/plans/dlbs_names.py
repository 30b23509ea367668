"""What DLBS's parameters are called here, and which have no equal, by the configurations of DLBS 0.4."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FRAMEWORKS = ("mxnet", "pytorch")
"""The frameworks of DLBS that this program has, by DLBS's names, which ``framework_name`` takes too."""
FRAMEWORK, PHASE, STATUS, TRIAL, DOCKER = (
    "exp.framework",
    "exp.phase",
    "exp.status",
    "exp.trial",
    "exp.docker",
)
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
_OF_TRAINING: Mapping[str, Mapping[str, str]] = {
    "mxnet": {"kv_store": "kv_store", "rendezvous": "rank_address"},
    "pytorch": {"distributed_rank": "rank", "distributed_rendezvous": "rank_address"},
}


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
    "exp.num_nodes": "a cell runs on one host; num_ranks, rank and rank_address are for several",
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
    "rendezvous": "only bench training has several ranks",
    "distributed_rank": "only bench training has several ranks",
    "distributed_rendezvous": "only bench training has several ranks",
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
    """Returns why a value of a parameter has no equal; None for one that has."""
    if name == FRAMEWORK and value not in FRAMEWORKS:
        return f"not among the frameworks of DLBS that are here: {', '.join(FRAMEWORKS)}"
    if name == "exp.dtype" and value not in ("float", "float32", "float16"):
        return "dtype takes float, float32, float16 and bfloat16"
    if name == "exp.gpus" and ":" in str(value):
        return "a replica has one GPU here; separate them with commas"
    return None
