"""The machine and the software as conditions of a comparison, one text for each that may differ."""

from __future__ import annotations

from collections.abc import Mapping

from inferometer.agent.inference.results import SystemDescription

CUDNN_BENCHMARK = "cudnn_benchmark"
"""The name of the condition that says whether cuDNN benchmarks its algorithms."""
_VARIABLE, _LIBRARY, _SETTING = "variable ", "library ", "setting "
_OF_THE_FRAMEWORK = (_LIBRARY, _SETTING)
_BUILD, _DETAILS, _DRIVER = "build", "framework details", "GPU driver"
_OF_THE_MACHINE = {"host", "system", "governor", _DRIVER, "Python", "inferometer", _BUILD, _DETAILS}
_UNKNOWN = "not known"


def machine_conditions(system: SystemDescription) -> Mapping[str, str]:
    """Returns the conditions, besides the requested options, that may change the speed of a model."""
    machine = system.environment
    conditions = {"inferometer": machine.inferometer_version, _DETAILS: _UNKNOWN}
    if not machine.is_known:
        return {"host": _UNKNOWN, **conditions}
    conditions |= {
        "host": f"{machine.hostname} ({machine.cpu_model}, {machine.usable_cores} cores)",
        "system": f"{machine.operating_system}, kernel {machine.kernel}",
        "governor": machine.governor or _UNKNOWN,
        "Python": machine.python_version,
    }
    if system.device.is_gpu:
        conditions[_DRIVER] = machine.gpu_driver or _UNKNOWN
    conditions |= {f"{_VARIABLE}{name}": value for name, value in machine.variables.items()}
    if machine.build or machine.libraries or machine.settings:
        conditions |= {_DETAILS: "known", _BUILD: machine.build}
        conditions |= {f"{_LIBRARY}{name}": version for name, version in machine.libraries.items()}
        conditions |= {f"{_SETTING}{name}": value for name, value in machine.settings.items()}
    return conditions


def not_comparable(left: Mapping[str, str], right: Mapping[str, str], *, same_framework: bool) -> set[str]:
    """Returns the names of conditions that say nothing about a difference of two evaluations.

    These are the conditions that depend on an unknown machine, or on a framework that reports no details of
    itself. For two frameworks, they are the conditions that only one of them has.
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
    return left_out | {name for name in of_one if name.startswith(_OF_THE_FRAMEWORK)}


def is_of_the_machine(name: str) -> bool:
    """Returns whether the evaluations of one side may differ in a condition."""
    return name in _OF_THE_MACHINE or name.startswith((_VARIABLE, _LIBRARY))


def nothing_told(name: str) -> str:
    """Returns the text for a condition that one of two evaluations does not have."""
    if name.startswith(_VARIABLE):
        return "not set"
    if name == CUDNN_BENCHMARK:
        return "the default"
    return "not told" if name.startswith(_OF_THE_FRAMEWORK) else "none"


def _is_detail(name: str) -> bool:
    return name == _BUILD or name.startswith(_OF_THE_FRAMEWORK)


def is_of_the_framework(name: str) -> bool:
    """Returns whether a condition is the framework, or a part or a setting of it."""
    return name == "framework" or name.startswith(_OF_THE_FRAMEWORK)
