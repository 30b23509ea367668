"""The options of ``agent op run`` as a request, which is checked before a framework is imported."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from inferometer.agent.hardware.device import CPU, Device, DeviceKind
from inferometer.agent.operators.operator import Operator, ParameterValue, Preset, Shape
from inferometer.agent.operators.table.registry import chosen_operators
from inferometer.evaluators.kinds.operators.case_file import read_cases
from inferometer.evaluators.kinds.operators.measurement import Cache, Mode, OperatorOptions
from inferometer.evaluators.operators.cases import OperatorRequest, OwnCase
from inferometer.manifests.errors import ConfigurationError, suggestion

FORMS = ("nd", "sym", "gluon", "eager", "compile", "graph", "parts")
"""The ways in which frameworks run an operator; ``OperatorRunner.forms`` says which has which."""
SHAPES = (*(preset.value for preset in Preset), "all")
_OF_ALL = (Preset.SMALL, Preset.NORMAL, Preset.LARGE, Preset.SKEWED)


def read_request(given: Mapping[str, Any]) -> OperatorRequest:
    """Returns the request that the options of ``agent op run`` describe, given by name.

    Raises:
        ConfigurationError: Nothing is requested, a name is unknown, or sizes do not fit an operator.
    """
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
        options=read_options(given),
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
    """Returns the presets and sizes in a text; ``all`` stands for those that every operator has.

    Raises:
        ConfigurationError: There is none.
    """
    found: list[str] = []
    for name in listed([text]):
        found += [each.value for each in _OF_ALL] if name.lower() == "all" else [name.lower()]
    if not found:
        raise ConfigurationError(
            f"shapes names none; give some of {', '.join(SHAPES)}, or sizes such as 1024x1024"
        )
    return tuple(dict.fromkeys(found))


def _modes(texts: Iterable[str], *, run_backward: bool) -> tuple[Mode, ...]:
    """Returns the modes; by default forward alone, with ``run_backward`` all."""
    every = tuple(mode.value for mode in Mode)
    named = [Mode(name) for name in known(listed(texts), every, "mode")] or [Mode.FORWARD]
    return tuple(dict.fromkeys([*named, *(Mode if run_backward else ())]))


def _device(given: Mapping[str, Any]) -> Device:
    if given["gpu"] and given["device"] == DeviceKind.CPU.value:
        raise ConfigurationError("--gpu and --device=cpu contradict each other; leave out one")
    is_gpu = given["gpu"] or given["device"] == DeviceKind.GPU.value
    return Device(DeviceKind.GPU, given["gpu_device_id"]) if is_gpu else CPU


def read_options(given: Mapping[str, Any]) -> OperatorOptions:
    """Returns how each row is measured."""
    dtype = given["dtype"].lower()
    return OperatorOptions(
        dtype="float32" if dtype == "float" else dtype,
        cache=Cache(given["cache"].lower()),
        target_percent=given["target_ci"] or None,
        budget_s=given["time_budget"],
        runs=given["runs"],
        warmup=given["warmup"],
        seed=given["seed"],
        processes=given["processes"],
        values=given["values"].lower(),
    )


def _own_case(given: Mapping[str, Any]) -> tuple[OwnCase, ...]:
    """Returns the case of ``--input`` and ``--param``; none without them."""
    inputs, parameters = given["inputs"], given["parameters"]
    if not inputs and not parameters:
        return ()
    option = "--input" if inputs else "--param"
    if len(given["operators"]) != 1 or given["categories"] or given["everything"]:
        raise ConfigurationError(
            f"{option} is for exactly one operator, named as in: agent op run conv2d --input "
            "data=32,3,224,224; cases of several are what --cases=FILE.yaml gives"
        )
    [operator] = chosen_operators(given["operators"])
    shapes = {name: parse_shape(text, f"--input {name}={text}") for name, text in _pairs(inputs, "--input")}
    chosen = {name: _parameter(operator, name, text) for name, text in _pairs(parameters, "--param")}
    operator.own_case(shapes, chosen)
    return (OwnCase(operator.name, shapes, chosen),)


def _pairs(texts: Sequence[str], option: str) -> Iterator[tuple[str, str]]:
    """Yields names and values, each name once."""
    seen = set()
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not name or not value.strip():
            example = "data=32,3,224,224" if option == "--input" else "kernel=3,3"
            raise ConfigurationError(f'{option} "{text}" is no NAME=VALUE, such as {example}')
        if name in seen:
            raise ConfigurationError(f"{option} gives {name} twice; leave out one")
        seen.add(name)
        yield name, value.strip()


def parse_shape(text: str, where: str) -> Shape:
    """Returns the shape in a text of sizes that are separated by commas or an x.

    Raises:
        ConfigurationError: The text is not a shape; the message begins with ``where``.
    """
    parts = text.replace("x", ",").split(",")
    if not all(part.strip().isascii() and part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise ConfigurationError(f"{where}: is no shape; write sizes of 1 or more, such as 32,3,224,224")
    return tuple(map(int, parts))


_TRUTHS = {"true": True, "1": True, "false": False, "0": False}


def _parameter(operator: Operator, name: str, text: str) -> ParameterValue:
    """Returns the value of a text, of the type of the parameter's default."""
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
            f"{where}: operator {operator.name} has {kind_of(default)} there, such as {written(default)}"
        ) from error
    return text


def kind_of(value: ParameterValue) -> str:
    """Returns what a parameter's value is, in words."""
    kinds = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
    return kinds.get(type(value), "whole numbers")


def written(value: ParameterValue) -> str:
    """Returns a parameter's value as an option has it."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
