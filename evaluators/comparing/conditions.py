"""The conditions of an evaluation, each a text by its name, and those in which two evaluations differ.

They are the properties of the machine and the software, the dataset, and the options.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from inferometer.evaluators.datasets.base import short_checksum
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.registry import kind_of

CUDNN_BENCHMARK = "cudnn_benchmark"
"""The name of the condition that says whether cuDNN benchmarks its algorithms."""
_VARIABLE, _LIBRARY, _SETTING = "variable ", "library ", "setting "
OF_THE_FRAMEWORK = (_LIBRARY, _SETTING)
_BUILD, _DETAILS, _DRIVER = "build", "framework details", "GPU driver"
_OF_THE_MACHINE = {"host", "system", "governor", _DRIVER, "Python", "inferometer", _BUILD, _DETAILS}
_UNKNOWN = "not known"


def _machine_conditions(evaluation: Evaluation) -> Mapping[str, str]:
    """Returns the conditions, besides the requested options, that may affect the speed of a model."""
    device, machine = evaluation.system.device, evaluation.system.environment
    conditions = {"inferometer": machine.inferometer_version, _DETAILS: _UNKNOWN}
    if not machine.is_known:
        return {"host": _UNKNOWN, **conditions}
    conditions |= {
        "host": f"{machine.hostname} ({machine.cpu_model}, {machine.usable_cores} cores)",
        "system": f"{machine.operating_system}, kernel {machine.kernel}",
        "governor": machine.governor or _UNKNOWN,
        "Python": machine.python_version,
    }
    if device.is_gpu:
        conditions[_DRIVER] = machine.gpu_driver or _UNKNOWN
    conditions |= {f"{_VARIABLE}{name}": value for name, value in machine.variables.items()}
    if machine.build or machine.libraries or machine.settings:
        conditions |= {_DETAILS: "known", _BUILD: machine.built_with}
        conditions |= {f"{_LIBRARY}{name}": version for name, version in machine.libraries.items()}
        conditions |= {f"{_SETTING}{name}": value for name, value in machine.settings.items()}
    return conditions


def _not_comparable(left: Mapping[str, str], right: Mapping[str, str], *, same_framework: bool) -> set[str]:
    """Returns the names of the conditions in which two evaluations cannot be compared.

    These are the conditions that depend on an unknown machine, or on a framework that reports no details of
    itself. If the frameworks differ, these are the conditions that only one of them has.
    """
    names = {*left, *right}
    if _UNKNOWN in {left["host"], right["host"]}:
        return {name for name in names if name != "host" and (is_of_the_machine(name) or _is_detail(name))}
    of_one = set(left) ^ set(right)
    left_out = {_DRIVER} & of_one  # the device tells that only one of them is a GPU
    if left[_DETAILS] != right[_DETAILS]:
        return left_out | {name for name in names if _is_detail(name)}
    if same_framework:
        return left_out
    return left_out | {name for name in of_one if name.startswith(OF_THE_FRAMEWORK)}


def is_of_the_machine(name: str) -> bool:
    """Returns whether the evaluations of one side may differ in a condition."""
    return name in _OF_THE_MACHINE or name.startswith((_VARIABLE, _LIBRARY))


def _nothing_told(name: str) -> str:
    """Returns the text for a condition that one of two evaluations does not have."""
    if name.startswith(_VARIABLE):
        return "not set"
    if name == CUDNN_BENCHMARK:
        return "the default"
    return "not told" if name.startswith(OF_THE_FRAMEWORK) else "none"


def _is_detail(name: str) -> bool:
    return name == _BUILD or name.startswith(OF_THE_FRAMEWORK)


_FILES = "model files"
SAMPLES = "samples of the dataset"
_EXPLAIN_FILES = {"model", "framework", "weights"}
"""Conditions that explain a difference between the files."""
_PRECISION = "precision"


def differences(one: Evaluation, other: Evaluation) -> Iterator[tuple[str, str, str]]:
    """Yields the name of each condition in which two evaluations differ, and both values."""
    left, right = _conditions(one), _conditions(other)
    frameworks = {each.system.manifest.framework.name for each in (one, other)}
    left_out = _not_comparable(left, right, same_framework=len(frameworks) == 1)
    if _PRECISION in set(left) ^ set(right):  # a file's own precision is not known
        left_out |= {_PRECISION}
    if (kind := kind_of(one)) is kind_of(other):
        left_out |= set(kind.equal_conditions(one.measurement, other.measurement))
    names = dict.fromkeys(name for name in (*left, *right) if name not in left_out)
    differing = [name for name in names if left.get(name) != right.get(name)]
    for name in differing:
        if name != _FILES or not _EXPLAIN_FILES & set(differing):
            nothing = _nothing_told(name)
            yield name, left.get(name, nothing), right.get(name, nothing)


def _conditions(evaluation: Evaluation) -> Mapping[str, str]:
    """Returns the conditions of an evaluation by name: those of the system, the dataset and the options."""
    system, dataset = evaluation.system, evaluation.dataset
    manifest, device = system.manifest, system.device
    parts = sorted(system.checksums.items())
    files = ", ".join(f"{part} {short_checksum(checksum)}" for part, checksum in parts)
    named = (dataset.name, dataset.version, short_checksum(dataset.checksum or ""))
    if dataset.is_synthetic:  # whose name has the seed
        named = (f"{dataset.size} synthetic inputs", None, "")
    gpus = ", ".join(dict.fromkeys(gpu.name for gpu in system.environment.gpus)) if device.is_gpu else ""
    kind = kind_of(evaluation)
    asked = {} if system.precision is None else {_PRECISION: system.precision.value}
    if device.is_gpu and system.cudnn_benchmark is not None:
        asked[CUDNN_BENCHMARK] = str(system.cudnn_benchmark).lower()
    return {
        "kind": kind.phrase,
        "model": f"{manifest.name} {manifest.version}",
        "framework": f"{manifest.framework.name} {system.framework_version}",
        "weights": system.weights.value,  # random ones take as long whatever their seed
        _FILES: files or "none",
        "dataset": " ".join(filter(None, named)),
        SAMPLES: dataset.chosen_samples or "all",
        "device": f"{device} ({gpus})" if gpus else str(device),
        "threads": str(system.threads or "not known"),
        "agent": "this process" if system.is_local else "served",
        **asked,
        **_machine_conditions(evaluation),
        **kind.conditions(evaluation),
    }
