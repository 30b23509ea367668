"""Exported programs (``.pt2``) as modules, without PyTorch's own loader.

``torch.export.load`` unpickles constants, evaluates expressions and looks up any name within ``torch``.
Here a program is data: tensors without pickles, and a graph of ATen operators, none of which opens a file,
and of arithmetic on sizes. Anything else is rejected.

The steps of a program are interpreted one by one: nothing in a file becomes source code. Operator names are
looked up in closed tables of PyTorch's operators and of arithmetic on sizes; other names are only dictionary
keys.
"""

from __future__ import annotations

import functools
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch

from inferometer.agent.artifacts.files import InputSignature, ModelSignature
from inferometer.agent.artifacts.torch_archives import TorchArchive, open_archive
from inferometer.manifests.errors import one_line, printable

_REFUSED_ARGUMENTS = frozenset({"filename"})
# the first prints a text of the file; the others take indices and offsets into memory without a check
_REFUSED = re.compile(r"aten::(_print|_sparse_\w+_unsafe|_nested_view_from_buffer\w*)(\..*)?")
_ON_SIZES: Mapping[str, Callable[..., Any]] = {
    **{
        f"_operator.{name}": getattr(operator, name)
        for name in (
            *("add", "and_", "eq", "floordiv", "ge", "gt", "le", "lt", "mod", "mul", "ne", "neg", "or_"),
            *("pos", "sub", "truediv"),
        )
    },
    **{f"math.{name}": getattr(math, name) for name in ("ceil", "floor", "trunc")},
    **{
        f"torch.{name}": getattr(torch, name)
        for name in ("sym_float", "sym_int", "sym_ite", "sym_max", "sym_min", "sym_not", "sym_sum")
        if hasattr(torch, name)
    },
}


@dataclass(frozen=True, slots=True)
class Computed:
    """An argument that is computed while the program runs; its name is text from the file or a number."""

    name: str | int


OutputNames: TypeAlias = "str | int | tuple[OutputNames, ...] | None"
"""The names of an operator's results: one name, a tuple of names, or None for an unused value."""


@dataclass(frozen=True, slots=True)
class Step:
    """A call of an operator; its arguments are plain values and ``Computed``."""

    called: Callable[..., Any]
    places: tuple[object, ...]
    named: Mapping[str, object]
    outputs: OutputNames


class ProgramModule(torch.nn.Module):
    """A program as a module: its tensors are buffers, and it returns a tuple.

    One dictionary holds the values of a run and the constants of all steps; a value is freed after the last
    step that uses it. ``input_names`` are in the order of the arguments.
    """

    def __init__(
        self,
        tensors: Mapping[str, torch.Tensor],
        inputs: Sequence[str],
        steps: Sequence[Step],
        outputs: Sequence[object],
    ) -> None:
        super().__init__()
        self.input_names = list(inputs)
        self._tensor_names = list(tensors)
        for number, tensor in enumerate(tensors.values()):
            self.register_buffer(f"tensor{number}", tensor)
        self._constants: dict[object, Any] = {}
        self._outputs = [self._key(each) for each in outputs]
        self._calls = self._calls_of(steps)

    def forward(self, *inputs: torch.Tensor) -> tuple[Any, ...]:
        """Runs the steps; raises the operators' errors, and TypeError for a wrong number of inputs."""
        if len(inputs) != len(self.input_names):
            raise TypeError(f"it takes {len(self.input_names)} inputs, but was given {len(inputs)}")
        values = self._constants.copy()
        values.update(zip(self._tensor_names, self._buffers.values(), strict=True))
        values.update(zip(self.input_names, inputs, strict=True))
        value = values.__getitem__
        for called, places, names, named, outputs, unused in self._calls:
            if names:
                made = called(*map(value, places), **dict(zip(names, map(value, named), strict=True)))
            else:
                made = called(*map(value, places))
            if type(outputs) is str:  # as most are
                values[outputs] = made
            else:
                _keep(outputs, made, values)
            del made
            for name in unused:
                del values[name]
        return tuple(map(value, self._outputs))

    def _calls_of(self, steps: Sequence[Step]) -> Sequence[tuple[Any, ...]]:
        """Returns each step with the keys of its arguments and of the values that no later step uses."""
        needed = set(self._outputs)
        calls = []
        for step in reversed(steps):
            places, named = map(self._key, step.places), map(self._key, step.named.values())
            call = step.called, tuple(places), tuple(step.named), tuple(named), step.outputs
            unused = {*call[1], *call[3], *_flat(step.outputs)} - needed - self._constants.keys()
            needed |= unused
            calls.append((*call, tuple(unused)))
        return calls[::-1]

    def _key(self, argument: object) -> object:
        """Returns an argument's key among the values: its name or, for a constant, a key unlike any name."""
        if isinstance(argument, Computed):
            return argument.name
        key = (len(self._constants),)
        self._constants[key] = argument
        return key


def step_of(target: object, given: Sequence[tuple[object, object]], outputs: Sequence[OutputNames]) -> Step:
    """Returns the step that calls an operator, given by its name in a program.

    Raises:
        ValueError: The operator is not one that a program may call, or its signature differs.
    """
    if isinstance(target, str) and target in _ON_SIZES:
        places = tuple(value for _, value in given)
        if any(isinstance(value, str) for value in places):
            raise ValueError(f"{target} takes numbers, but was given text")
        return Step(_ON_SIZES[target], places, {}, _returned(outputs, 1))
    called = _operator(target)
    left = dict(given)
    places_of = []
    for argument in called._schema.arguments:
        if argument.kwarg_only or argument.name not in left:
            break
        places_of.append(left.pop(argument.name))
    known = {argument.name for argument in called._schema.arguments[len(places_of) :]}
    if len(left) + len(places_of) < len(given) or not known.issuperset(left):
        raise ValueError(f"it calls {called} with arguments other than those of its schema")
    named = {str(name): value for name, value in left.items()}
    return Step(called, tuple(places_of), named, _returned(outputs, len(called._schema.returns)))


@functools.cache
def _aten() -> Mapping[str, tuple[str, str]]:
    """Returns the names of ATen operators and their overloads, by their names in programs.

    The names come from the dispatcher, which has no kernels for TorchScript's own operators on files.
    """
    found = {}
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        if namespace == "aten" and not _REFUSED.fullmatch(name) and torch._C._dispatch_has_kernel(name):
            overload = overload or "default"
            found[f"torch.ops.aten.{packet}.{overload}"] = packet, overload
    return found


def _operator(target: object) -> torch._ops.OpOverload:
    """Returns an ATen operator; raises ValueError for any other name."""
    text = target if isinstance(target, str) else ""
    if names := _aten().get(text):
        packet, overload = names  # PyTorch's own texts, equal to those of the file
        found: torch._ops.OpOverload = getattr(getattr(torch.ops.aten, packet), overload)
        if _REFUSED_ARGUMENTS.isdisjoint(argument.name for argument in found._schema.arguments):
            return found
    raise ValueError(f"it uses {one_line(printable(text), 80)}; accepted: ATen's operators that use no files")


def _returned(outputs: Sequence[OutputNames], number: int) -> OutputNames:
    """Returns the names of a call's results in the form that the call returns: one, several, or none."""
    if len(outputs) != number:
        raise ValueError(f"it has {len(outputs)} names for the {number} values that an operator returns")
    return outputs[0] if number == 1 else tuple(outputs) or None


def _keep(names: OutputNames, made: Any, values: dict[object, Any]) -> None:
    if isinstance(names, tuple):
        for name, each in zip(names, made, strict=True):
            _keep(name, each, values)
    elif names is not None:
        values[names] = made


def _flat(names: OutputNames) -> set[str | int]:
    if isinstance(names, tuple):
        return set().union(*map(_flat, names))
    return set() if names is None else {names}


def _list(*items: object) -> list[object]:
    return list(items)


_MODEL = "model"
_FORMAT = "exported program"
# The numbers of torch._export.serde.schema.ScalarType, MemoryFormat, Layout and ArgumentKind.
_DTYPES = {
    **dict(enumerate((torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64), 1)),
    **dict(enumerate((torch.float16, torch.float32, torch.float64), 6)),
    **dict(enumerate((torch.complex64, torch.complex128, torch.bool, torch.bfloat16), 10)),
    28: torch.uint16,
    34: torch.uint32,
}
_MEMORY_FORMATS = {
    1: torch.contiguous_format,
    2: torch.channels_last,
    3: torch.channels_last_3d,
    4: torch.preserve_format,
}
_STRIDED = 7
_OPERATORS = {"softmax": "Softmax", "log_softmax": "LogSoftmax", "sigmoid": "Sigmoid"}
"""ONNX's names of the operators that compute probabilities."""
_Json: TypeAlias = Mapping[str, Any]


def read_program_signature(path: Path) -> ModelSignature:
    """Returns the inputs and outputs of an exported program; raises ArtifactError like ``build_program``."""
    with open_archive(path, _FORMAT) as archive:
        program = _Program(archive)
        outputs, operators = program.user_outputs()
        inputs = tuple(program.user_inputs().values())
        return ModelSignature(inputs, path, outputs=outputs, operators=operators)


def build_program(path: Path, device: torch.device) -> ProgramModule:
    """Returns an exported program as a module on a device, with its parameters as buffers.

    Its output is a tuple of tensors.

    Raises:
        ArtifactError: It is damaged, of another version, or requires something unsupported: pickled weights
            or constants, operators other than ATen's, control flow, or state that it changes.
    """
    with open_archive(path, _FORMAT) as archive:
        return _Builder(_Program(archive), device).build()


class _Program:
    """The program of an archive; raises ValueError, LookupError or TypeError if it is invalid."""

    def __init__(self, archive: TorchArchive) -> None:
        self._archive = archive
        program = _mapping(archive.json(f"models/{_MODEL}.json"))
        self.graph = _mapping(program["graph_module"]["graph"])
        signature = program["graph_module"]["signature"]
        self.input_specs = [_only(spec) for spec in signature["input_specs"]]
        self.output_specs = [_only(spec) for spec in signature["output_specs"]]

    def user_inputs(self) -> dict[str, InputSignature]:
        """Returns the inputs that a caller passes, by their names in the graph."""
        found = {}
        for kind, spec in self.input_specs:
            if kind != "user_input":
                continue
            form, value = _only(spec["arg"])
            if form != "as_tensor":
                raise ValueError(f"it takes an input that is not a tensor ({printable(form)})")
            found[value["name"]] = self._signature(value["name"], printable(str(value["name"])))
            if not all(size is None or size > 0 for size in found[value["name"]].shape or ()):
                raise ValueError("its input has no shape")
        return found

    def user_outputs(self) -> tuple[tuple[InputSignature, ...], dict[str, str]]:
        """Returns the outputs, which have no names, and for each ONNX's name of its operator, if known."""
        made = [(each, node["target"]) for node in self.graph["nodes"] for each in node["outputs"]]
        targets = {each["as_tensor"]["name"]: target for each, target in made if "as_tensor" in each}
        outputs, operators = [], {}
        for place, (_, spec) in enumerate(self.output_specs):
            form, value = _only(spec["arg"])
            if form == "as_tensor":
                outputs.append(self._signature(value["name"], f"output{place}"))
                target = targets.get(value["name"], "").removeprefix("torch.ops.aten.").partition(".")[0]
                operators[f"output{place}"] = _OPERATORS.get(target.lstrip("_"), "")
        return tuple(outputs), operators

    def _signature(self, name: str, shown: str) -> InputSignature:
        meta = self.graph["tensor_values"][name]
        shape = tuple(size.get("as_int") for size in map(_mapping, meta["sizes"]))
        if not all(size is None or type(size) is int for size in shape):
            raise ValueError(f"{shown} has no shape")
        dtype = str(_DTYPES.get(meta["dtype"], "of an unknown element type")).removeprefix("torch.")
        return InputSignature(shown, dtype, shape)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Returns the tensors, keyed by the names of their graph inputs."""
        weights = self._payload(f"data/weights/{_MODEL}_weights_config.json")
        constants = self._payload(f"data/constants/{_MODEL}_constants_config.json")
        found = {}
        for kind, spec in self.input_specs:
            if kind == "parameter":
                found[spec["arg"]["name"]] = self._tensor("weights", weights[spec["parameter_name"]])
            elif kind == "buffer":
                place = ("weights", weights) if spec["persistent"] else ("constants", constants)
                found[spec["arg"]["name"]] = self._tensor(place[0], place[1][spec["buffer_name"]])
            elif kind == "tensor_constant":
                found[spec["arg"]["name"]] = self._tensor(
                    "constants", constants[spec["tensor_constant_name"]]
                )
            elif kind not in {"user_input", "constant_input"}:
                raise ValueError(f"it takes an input of kind {printable(kind)}, which is not supported")
        return found

    def _payload(self, name: str) -> _Json:
        return _mapping(self._archive.json(name)["config"])

    def _tensor(self, folder: str, payload: _Json) -> torch.Tensor:
        """Returns a tensor of the archive with its strides."""
        if payload["use_pickle"] or payload["tensor_meta"] is None:
            raise ValueError("it has pickled tensors or objects, which are not read")
        meta = payload["tensor_meta"]
        if meta["layout"] != _STRIDED:
            raise ValueError("it has tensors that are not dense")
        dtype = _DTYPES[meta["dtype"]]
        shape, strides = (tuple(_whole(each) for each in meta[name]) for name in ("sizes", "strides"))
        if not math.prod(shape):
            return torch.zeros(shape, dtype=dtype)
        content = self._archive.read(f"data/{folder}/{payload['path_name']}")
        flat = torch.frombuffer(bytearray(content), dtype=dtype)
        return flat.as_strided(shape, strides, _whole(meta["storage_offset"]))


class _Builder:
    """Builds a module of steps from a program; each value is named before a step uses it."""

    def __init__(self, program: _Program, device: torch.device) -> None:
        self._program = program
        self._device = device
        self._values: dict[str, object] = {}
        """The value that an argument's name stands for."""
        self._steps: list[Step] = []

    def build(self) -> ProgramModule:
        program = self._program
        tensors = {name: tensor.to(self._device) for name, tensor in program.tensors().items()}
        inputs = list(program.user_inputs())
        for name in (*tensors, *inputs):
            self._define(name)
        for kind, spec in program.input_specs:
            if kind == "constant_input":
                form, content = _only(spec["value"])
                self._values[spec["name"]] = None if form == "as_none" else _plain(content)
        for node in program.graph["nodes"]:
            given = [(each["name"], self._value(each["arg"])) for each in node["inputs"]]
            step = step_of(node["target"], given, [self._output(each) for each in node["outputs"]])
            self._steps.append(step)
        outputs = []
        for kind, spec in program.output_specs:
            if kind != "user_output":
                raise ValueError(
                    f"it changes its own state ({printable(kind)}); export the module after module.eval()"
                )
            outputs.append(self._value(spec["arg"]))
        return ProgramModule(tensors, inputs, self._steps, outputs)

    def _output(self, output: _Json) -> OutputNames:
        """Returns the program's name or names for the results of an operator."""
        kind, value = _only(output)
        if kind == "as_tensor":
            return self._define(value["name"])
        if kind == "as_optional_tensor":
            return self._output(value)
        if kind in {"as_sym_int", "as_sym_float", "as_sym_bool"}:
            return self._define(value["as_name"])
        if kind == "as_tensors":
            return tuple(self._define(each["name"]) for each in value)
        if kind != "as_none":
            raise ValueError(f"an operator returns {printable(kind)}, which is not supported")
        return None

    def _define(self, name: object) -> str:
        if not isinstance(name, str):
            raise TypeError("one of its names is not text")
        self._values[name] = Computed(name)
        return name

    def _value(self, argument: _Json) -> object:
        """Returns the value of an argument, or a placeholder until it is computed."""
        kind, value = _only(argument)
        match kind:
            case "as_none":
                return None
            case "as_float":  # numbers that are not finite are text, as JSON has no other form for them
                return float(_plain(value))
            case "as_floats":
                return [float(_plain(each)) for each in value]
            case "as_int" | "as_bool" | "as_string":
                return _plain(value)
            case "as_ints" | "as_bools" | "as_strings":
                return [_plain(each) for each in value]
            case "as_tensor":
                return self._values[value["name"]]
            case "as_tensors":
                return self._listed([self._values[each["name"]] for each in value])
            case "as_sym_int" | "as_sym_float" | "as_sym_bool":
                return self._size(value)
            case "as_sym_ints" | "as_sym_floats" | "as_sym_bools":
                return self._listed([self._size(each) for each in value])
            case "as_optional_tensor":
                return self._value(value)
            case "as_optional_tensors":
                return self._listed([self._value(each) for each in value])
            case "as_scalar_type":
                return _DTYPES[value]
            case "as_memory_format":
                return _MEMORY_FORMATS[value]
            case "as_layout" if value == _STRIDED:
                return torch.strided
            case "as_device":
                return self._device  # a program names the device that it was exported on
            case "as_complex":
                return complex(float(value["real"]), float(value["imag"]))
        raise ValueError(f"it has an argument of kind {printable(kind)}, which is not supported")

    def _listed(self, items: list[object]) -> object:
        """Returns a list as an argument; if it contains computed values, a step builds it."""
        if not any(isinstance(each, Computed) for each in items):
            return items
        made = Computed(len(self._steps))
        self._steps.append(Step(_list, tuple(items), {}, len(self._steps)))
        return made

    def _size(self, argument: _Json) -> object:
        kind, value = _only(argument)
        return self._values[value] if kind == "as_name" else _plain(value)


def _only(union: object) -> tuple[str, Any]:
    """Returns the name and the value of the only field of a union in the format."""
    [(kind, value)] = _mapping(union).items()
    return kind, value


def _mapping(value: object) -> _Json:
    if not isinstance(value, dict):
        raise TypeError("one of its parts is not an object")
    return value


def _whole(size: object) -> int:
    kind, value = _only(size)
    if kind != "as_int" or type(value) is not int or value < 0:
        raise ValueError("one of its tensors has no fixed shape")
    return value


def _plain(value: object) -> Any:
    """Returns a plain value: a number, a boolean or text."""
    if not isinstance(value, bool | int | float | str):
        raise TypeError("one of its arguments is not a plain value")
    return value
