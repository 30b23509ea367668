"""The request for a benchmark: operators of the table, the sizes of their inputs, and modes.

The options of ``agent op run`` are read as a request, which is checked before a framework is imported. The
coverage of the table states how each framework runs the table's operators, and which others it has. The input
values are drawn from a seed and are the same for every framework. A YAML file may contain the cases: a list
whose entries name an operator and some of its sizes.

::

    - operator: conv2d
      inputs: {data: [32, 3, 224, 224]}
      parameters: {kernel: [3, 3]}
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.hardware.environment import CPU, Device, DeviceKind
from inferometer.agent.inference.registry import FrameworkEntry, Registry
from inferometer.agent.operators.operator import (
    Case,
    Operator,
    OperatorRunner,
    OwnCase,
    ParameterValue,
    Preset,
    RunnerOptions,
    Shape,
    TensorSpec,
    Values,
    chosen_operators,
    operators,
    parameter_text,
)
from inferometer.evaluators.kinds.operators.options import PROFILERS, Mode, OperatorOptions
from inferometer.manifests.errors import ConfigurationError, FrameworkUnavailableError, suggestion
from inferometer.manifests.loader import read_yaml


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorRequest:
    """A benchmark of operators.

    Attributes:
        operators: Names in the table.
        categories: Groups of the table.
        everything: Whether to run the whole table.
        presets: The sizes of the named operators: presets, or sizes such as ``1024x1024``, which apply to all
            given inputs of an operator.
        own: Further cases, with a user's own sizes.
        frameworks: The frameworks, in the order of the evaluations; empty for all that are installed.
        forms: The forms to run, if a framework has them; empty for the first one of each framework.
        threads: The CPU threads of an operator; None for ``default_threads``.
        options: How each row is measured.

    Raises:
        ConfigurationError: A name is unknown, nothing is requested, or sizes do not fit an operator.
    """

    operators: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    everything: bool = False
    presets: tuple[str, ...] = (Preset.NORMAL.value,)
    own: tuple[OwnCase, ...] = ()
    frameworks: tuple[str, ...] = ()
    modes: tuple[Mode, ...] = (Mode.FORWARD,)
    forms: tuple[str, ...] = ()
    device: Device = CPU
    threads: int | None = None
    options: OperatorOptions = OperatorOptions()  # noqa: RUF009 - frozen

    def __post_init__(self) -> None:
        if not self.cases():
            named = self.operators or self.categories or self.everything
            raise ConfigurationError(
                f"none of the operators has cases of shapes {', '.join(self.presets)}; leave out shapes"
                if named
                else "no operator is named; name some, such as add conv2d, or a category, or all of them"
            )

    def cases(self) -> tuple[tuple[str, Case], ...]:
        """Returns all requested cases with the names of their operators, in the table's order."""
        names = operators() if self.everything else self.operators
        named = chosen_operators(names, self.categories)
        found = [
            (each.name, case) for each in named for size in self.presets for case in _cases(each.name, size)
        ]
        for own in self.own:
            (operator,) = chosen_operators([own.operator])
            found.append((own.operator, operator.own_case(own.shapes, own.parameters)))
        return tuple(found)


def _cases(name: str, size: str) -> tuple[Case, ...]:
    """Returns the cases of an operator for a preset, or for a size such as ``1024x1024``."""
    operator = operators()[name]
    if size in tuple(Preset):
        return operator.cases(Preset(size))
    parts = size.replace("×", "x").split("x")
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise ConfigurationError(
            f'unknown shapes "{size}"; {suggestion(size, [each.value for each in Preset])}, '
            "or sizes such as 1024x1024"
        )
    shape = tuple(int(part) for part in parts)
    return (operator.own_case(dict.fromkeys(operator.given, shape)),)


@dataclass(frozen=True, slots=True)
class Coverage:
    """The operators of the table that one framework runs.

    Attributes:
        framework: Its name.
        version: The installed version; None if it is not installed.
        forms: The ways in which it runs an operator, by operator name; empty if it lacks the operator.
        reasons: Why it lacks an operator, by the operator's name.
        uncovered: The operators of the framework's own registry that the table does not use, sorted.
    """

    framework: str
    version: str | None
    forms: Mapping[str, tuple[str, ...]]
    reasons: Mapping[str, str]
    uncovered: tuple[str, ...]


def frameworks_with_operators(registry: Registry, names: Sequence[str] = ()) -> Iterator[FrameworkEntry]:
    """Yields the frameworks with the given names, or all that run single operators.

    Raises:
        UnknownFrameworkError: There is no framework with such a name.
        ConfigurationError: One of them does not run single operators.
    """
    for entry in [registry.find(name) for name in names] or registry.entries:
        if entry.operators:
            yield entry
        elif names:
            raise ConfigurationError(f"framework {entry.name} cannot run single operators")


def coverage_of(entry: FrameworkEntry, operators: Sequence[Operator]) -> Coverage:
    """Returns a framework's coverage of some operators. It imports the framework.

    If the framework is not installed or cannot be imported, that is the reason why it lacks all of them.
    """
    try:
        runner_class = entry.load_operators()
    except FrameworkUnavailableError as error:
        reasons = dict.fromkeys((each.name for each in operators), str(error))
        return Coverage(entry.name, entry.installed_version, {}, reasons, ())
    if not (isinstance(runner_class, type) and issubclass(runner_class, OperatorRunner)):
        raise ConfigurationError(f"framework {entry.name}: {entry.operators} is not an OperatorRunner")
    with closing(runner_class(RunnerOptions())) as runner:
        forms = {each.name: runner.forms(each.name) for each in operators}
        reasons = {name: runner.missing(name) for name, found in forms.items() if not found}
        return Coverage(entry.name, entry.installed_version, forms, reasons, runner.uncovered())


_RANGES = {
    Values.POSITIVE: (0.5, 1.5),
    Values.UNIT: (-0.9, 0.9),
    Values.ABOVE_ONE: (1.1, 2.0),
    Values.PROBABILITY: (0.05, 0.95),
}


def draw_inputs(
    operator: Operator, case: Case, dtype: np.dtype[Any], seed: int
) -> Mapping[str, NDArray[Any]]:
    """Returns the inputs by name, in ``dtype`` except for indices (int64) and masks (bool).

    They depend only on the seed, the operator's name and the shapes. For integer types, the drawn values are
    multiplied by 10 and rounded. An input that specifies its own type has that type.
    """
    found = {}
    for spec in operator.tensors(case):
        number = zlib.crc32(f"{operator.name} {spec}".encode())
        own = np.dtype(spec.dtype) if spec.dtype else dtype
        found[spec.name] = _draw(spec, own, np.random.default_rng([seed, number]))
    return found


def _draw(spec: TensorSpec, dtype: np.dtype[Any], random: np.random.Generator) -> NDArray[Any]:
    if spec.values is Values.INDICES:
        return random.integers(0, spec.limit, spec.shape, np.int64)
    if spec.values is Values.LENGTHS:
        return random.integers(1, spec.limit + 1, spec.shape, np.int64)
    if spec.values is Values.DISTINCT_INDICES:
        return random.permutation(spec.limit)[: prod(spec.shape)].reshape(spec.shape).astype(np.int64)
    if spec.values is Values.MASK:
        return random.integers(0, 2, spec.shape).astype(np.bool_)
    if dtype.kind in "iu" and spec.values is Values.NORMAL and prod(spec.shape) > 1 << 24:
        return random.integers(-10, 11, spec.shape, dtype)  # floats would have 4 to 8 times the size
    if spec.values is Values.BOXES:
        corners = np.sort(random.random((spec.shape[0], 2, 2), np.float32), axis=1) * np.float32(spec.scale)
        images = random.integers(0, spec.limit, (spec.shape[0], 1))
        boxes: NDArray[Any] = np.concatenate([images, corners.reshape(-1, 4)], axis=1).astype(dtype)
        return boxes
    values = _floats(spec, random)
    if spec.scale != 1.0:
        values *= spec.scale
    if dtype.kind in "iu" and spec.values not in (Values.BOOLEAN, Values.SIGNS, Values.ZEROS):
        values = np.rint(values * 10)
    return np.ascontiguousarray(values, dtype)


def _floats(spec: TensorSpec, random: np.random.Generator) -> Any:
    shape, kind = spec.shape, spec.values
    if kind is Values.NORMAL:
        return random.standard_normal(shape, np.float32)
    if kind in _RANGES:
        low, high = _RANGES[kind]
        return random.random(shape, np.float32) * np.float32(high - low) + np.float32(low)
    if kind is Values.DISTRIBUTION:
        weights = random.random(shape, np.float32) + np.float32(0.5)
        return weights / weights.sum(axis=-1, keepdims=True)
    if kind is Values.NONZERO:
        drawn = random.standard_normal(shape, np.float32)
        return drawn + np.copysign(np.float32(0.5), drawn)
    if kind is Values.SIGNS:
        return random.integers(0, 2, shape).astype(np.float32) * 2 - 1
    if kind is Values.BOOLEAN:
        return random.integers(0, 2, shape).astype(np.float32)
    if kind is Values.DISTINCT:
        return (random.permutation(prod(shape)).astype(np.float32) / prod(shape) - 0.5).reshape(shape)
    if kind is Values.ZEROS:
        return np.zeros(shape, np.float32)
    square = random.standard_normal(shape, np.float32)
    if kind is Values.LOWER_TRIANGULAR:
        size = shape[-1]
        return np.tril(square, -1) / size + np.eye(size, dtype=np.float32) * (
            1 + random.random((*shape[:-1], 1), np.float32)
        )
    return square @ np.swapaxes(square, -1, -2) / shape[-1] + np.eye(shape[-1], dtype=np.float32)


_FIELDS = ("operator", "inputs", "parameters")


def read_cases(path: Path) -> tuple[OwnCase, ...]:
    """Returns the cases of a file, in order.

    Raises:
        ConfigurationError: The file cannot be read or is not a list of cases, or a case does not fit its
            operator. The message names the file and the line or entry number, counted from 1.
    """
    content = read_yaml(path, "case files", ConfigurationError)
    if not isinstance(content, list) or not content:
        raise ConfigurationError(f"{path}: is not a list of cases, each with operator, inputs and parameters")
    cases = []
    for number, entry in enumerate(content, 1):
        try:
            cases.append(_case(entry))
        except ConfigurationError as error:
            raise ConfigurationError(f"{path}: entry {number}: {error}") from error
    return tuple(cases)


def _case(entry: Any) -> OwnCase:
    if not isinstance(entry, dict):
        raise ConfigurationError(f"is {_shown(entry)}, not a mapping with operator, inputs and parameters")
    for name in entry:
        if name not in _FIELDS:
            raise ConfigurationError(f'unknown field "{name}"; {suggestion(str(name), _FIELDS)}')
    name = entry.get("operator")
    if not isinstance(name, str):
        raise ConfigurationError("names no operator; give one as in operator: conv2d")
    [operator] = chosen_operators([name])
    shapes = _each(entry, "inputs", lambda _, value: _shape(value))
    parameters = _each(entry, "parameters", lambda name, value: _yaml_parameter(operator, name, value))
    operator.own_case(shapes, parameters)
    return OwnCase(operator.name, shapes, parameters)


def _each(entry: Mapping[str, Any], field: str, read: Callable[[str, Any], Any]) -> dict[str, Any]:
    """Returns the values of an optional field that is a mapping."""
    given = entry.get(field, {})
    if not isinstance(given, dict):
        raise ConfigurationError(f"{field} is {_shown(given)}, not a mapping of names to values")
    found = {}
    for name, value in given.items():
        try:
            found[str(name)] = read(str(name), value)
        except ValueError as error:
            raise ConfigurationError(f"{field}: {name} is {_shown(value)}; {error}") from error
    return found


def _shape(value: Any) -> Shape:
    if not isinstance(value, list) or not value or not all(_is_whole(size) and size > 0 for size in value):
        raise ValueError("write a list of sizes of 1 or more, such as [32, 3, 224, 224]")
    return tuple(value)


def _yaml_parameter(operator: Operator, name: str, value: Any) -> ParameterValue:
    """Returns the value if it has the type of the parameter's default."""
    default = operator.parameters.get(name)
    if default is None:
        return str(value)  # own_case names the nearest parameter
    if isinstance(default, tuple):
        if isinstance(value, list) and all(map(_is_whole, value)):
            return tuple(value)
        raise ValueError(f"write whole numbers, such as {list(default)}")
    if isinstance(default, float) and _is_whole(value):
        return float(value)
    if type(value) is not type(default):
        raise ValueError(f"write a value such as {str(default).lower()}")
    found: ParameterValue = value
    return found


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    text = " ".join(str(value).split())
    return f'"{text[:60]}"' if text else "empty"


FORMS = ("nd", "sym", "gluon", "eager", "compile", "graph", "parts")
"""The ways in which frameworks run an operator; see ``OperatorRunner.forms`` for each framework."""
SHAPES = (*(preset.value for preset in Preset), "all")
_OF_ALL = (Preset.SMALL, Preset.NORMAL, Preset.LARGE, Preset.SKEWED)


def _use_opperf(given: MutableMapping[str, Any]) -> None:
    """Sets the options that those of opperf stand for.

    Raises:
        ConfigurationError: One of them is given, too, or there is no such device.
    """
    found: dict[str, tuple[str, Any]] = {}
    if profiler := given["profiler"]:
        found |= {"modes": ("--profiler", PROFILERS[profiler]), "run_backward": ("--profiler", False)}
    if given["int64_tensor"] == "on":
        found["shapes"] = ("--int64_tensor", Preset.HUGE.value)
    if given["ctx"] is not None:
        device = Device.named(given["ctx"])
        named = {"device": device.kind.value, "gpu": False, "gpu_device_id": device.index}
        found |= {name: ("--ctx", value) for name, value in named.items()}
    for name, (flag, value) in found.items():
        if given[name]:
            raise ConfigurationError(f"{flag} and another option set {name}; leave out one of them")
        given[name] = value


def read_request(given: MutableMapping[str, Any]) -> OperatorRequest:
    """Returns the request from the options of ``agent op run``, given by name.

    Raises:
        ConfigurationError: Nothing is requested, a name is unknown, or sizes do not fit an operator.
    """
    _use_opperf(given)
    names, categories = given["operators"], tuple(listed(given["categories"]))
    own, shapes = _own_case(given), given["shapes"]
    if own and shapes is None:
        names = ()
    cases = () if given["cases"] is None else read_cases(given["cases"])
    return OperatorRequest(
        operators=names,
        categories=categories,
        everything=given["everything"],
        presets=presets_of(shapes or Preset.NORMAL.value),
        own=(*own, *cases),
        frameworks=tuple(listed([given["framework_name"] or ""])),
        modes=_modes(given["modes"], run_backward=given["run_backward"]),
        forms=tuple(known(listed(given["forms"]), FORMS, "form")),
        device=_device(given),
        threads=given["threads"],
        options=OperatorOptions.of(given),
    )


def listed(texts: Iterable[str]) -> Iterator[str]:
    """Yields the distinct names in comma-separated texts."""
    parts = (part.strip() for text in texts for part in text.split(","))
    yield from dict.fromkeys(part for part in parts if part)


def known(names: Iterable[str], every: Sequence[str], what: str) -> Iterator[str]:
    """Yields names in lower case.

    Raises:
        ConfigurationError: A name is not one of ``every``.
    """
    for name in names:
        if name.lower() not in every:
            raise ConfigurationError(f'unknown {what} "{name}"; {suggestion(name, every)}')
        yield name.lower()


def presets_of(text: str) -> tuple[str, ...]:
    """Returns the presets and sizes in a text; ``all`` means the presets that every operator has.

    Raises:
        ConfigurationError: The text contains none.
    """
    found: list[str] = []
    for name in listed([text]):
        found += [each.value for each in _OF_ALL] if name.lower() == "all" else [name.lower()]
    if not found:
        raise ConfigurationError(
            f"shapes is empty; give some of {', '.join(SHAPES)}, or sizes such as 1024x1024"
        )
    return tuple(dict.fromkeys(found))


def _modes(texts: Iterable[str], *, run_backward: bool) -> tuple[Mode, ...]:
    """Returns the modes: by default only ``forward``, and all if ``run_backward``."""
    every = tuple(mode.value for mode in Mode)
    named = [Mode(name) for name in known(listed(texts), every, "mode")] or [Mode.FORWARD]
    return tuple(dict.fromkeys([*named, *(Mode if run_backward else ())]))


def _device(given: Mapping[str, Any]) -> Device:
    if given["gpu"] and given["device"] == DeviceKind.CPU.value:
        raise ConfigurationError("--gpu and --device=cpu contradict each other; leave out one")
    is_gpu = given["gpu"] or given["device"] == DeviceKind.GPU.value
    return Device(DeviceKind.GPU, given["gpu_device_id"]) if is_gpu else CPU


def _own_case(given: Mapping[str, Any]) -> tuple[OwnCase, ...]:
    """Returns the case given by ``--input`` and ``--param``, or none if neither is given."""
    inputs, parameters = given["inputs"], given["parameters"]
    if not inputs and not parameters:
        return ()
    option = "--input" if inputs else "--param"
    if len(given["operators"]) != 1 or given["categories"] or given["everything"]:
        raise ConfigurationError(
            f"{option} is for exactly one operator, named as in: agent op run conv2d --input "
            "data=32,3,224,224; for several operators, use --cases=FILE.yaml"
        )
    [operator] = chosen_operators(given["operators"])
    shapes = {name: _text_shape(text, f"--input {name}={text}") for name, text in _pairs(inputs, "--input")}
    chosen = {name: _text_parameter(operator, name, text) for name, text in _pairs(parameters, "--param")}
    operator.own_case(shapes, chosen)
    return (OwnCase(operator.name, shapes, chosen),)


def _pairs(texts: Sequence[str], option: str) -> Iterator[tuple[str, str]]:
    """Yields names and values; a name may occur only once."""
    seen = set()
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not name or not value.strip():
            example = "data=32,3,224,224" if option == "--input" else "kernel=3,3"
            raise ConfigurationError(f'{option} "{text}" is not NAME=VALUE, such as {example}')
        if name in seen:
            raise ConfigurationError(f"{option} gives {name} twice; leave out one")
        seen.add(name)
        yield name, value.strip()


def _text_shape(text: str, where: str) -> Shape:
    """Returns the shape in a text of sizes separated by commas or x; errors begin with ``where``."""
    parts = text.replace("x", ",").split(",")
    if not all(part.strip().isascii() and part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise ConfigurationError(f"{where}: is not a shape; write sizes of 1 or more, such as 32,3,224,224")
    return tuple(map(int, parts))


_TRUTHS = {"true": True, "1": True, "false": False, "0": False}
_KINDS = {bool: "true or false", int: "a whole number", float: "a number"}


def _text_parameter(operator: Operator, name: str, text: str) -> ParameterValue:
    """Returns the text's value, converted to the type of the parameter's default."""
    if name not in operator.parameters:
        operator.own_case({}, {name: text})  # which raises, with the nearest name
    default, where = operator.parameters[name], f"--param {name}={text}"
    try:
        if isinstance(default, bool):
            return _TRUTHS[text.lower()]
        if isinstance(default, int):
            return int(text)
        if isinstance(default, float):
            return float(text)
        if isinstance(default, tuple):
            return tuple(int(part) for part in text.replace("x", ",").split(","))
    except (ValueError, KeyError) as error:
        raise ConfigurationError(
            f"{where}: operator {operator.name} takes {_KINDS.get(type(default), 'whole numbers')}, "
            f"such as {parameter_text(default)}"
        ) from error
    return text
