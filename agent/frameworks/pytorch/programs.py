"""Exported programs (``.pt2``) as modules, without PyTorch's own loader.

``torch.export.load`` unpickles constants, evaluates expressions and looks up any name within ``torch``. Here
a program is data: tensors without pickles, and a graph of ATen's operators, none of which opens a file, and
of arithmetic on sizes. Anything else is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import torch

from inferometer.agent.artifacts.signature import InputSignature
from inferometer.agent.artifacts.torch_archives import TorchArchive, open_archive
from inferometer.agent.frameworks.pytorch.program_steps import (
    Computed,
    OutputNames,
    ProgramModule,
    Step,
    list_of,
    step_of,
)
from inferometer.manifests.errors import printable

_MODEL = "model"
_FORMAT = "exported program"
# The numbers of torch._export.serde.schema.ScalarType, MemoryFormat, Layout and ArgumentKind.
_DTYPES = {
    1: torch.uint8,
    2: torch.int8,
    3: torch.int16,
    4: torch.int32,
    5: torch.int64,
    6: torch.float16,
    7: torch.float32,
    8: torch.float64,
    10: torch.complex64,
    11: torch.complex128,
    12: torch.bool,
    13: torch.bfloat16,
}
_MEMORY_FORMATS = {
    1: torch.contiguous_format,
    2: torch.channels_last,
    3: torch.channels_last_3d,
    4: torch.preserve_format,
}
_STRIDED = 7
_Json: TypeAlias = Mapping[str, Any]


def read_program_inputs(path: Path) -> tuple[InputSignature, ...]:
    """Returns the inputs of an exported program.

    Raises:
        ArtifactError: It is no exported program that can be read; see ``build_program``.
    """
    with open_archive(path, _FORMAT) as archive:
        return tuple(_Program(archive).user_inputs().values())


def build_program(path: Path, device: torch.device) -> ProgramModule:
    """Returns an exported program as a module on a device, with its parameters as buffers.

    Its output is a tuple of tensors.

    Raises:
        ArtifactError: It is damaged, of another version, or requires what is not read: pickled weights or
            constants, other operators than ATen's, control flow, or state that it changes.
    """
    with open_archive(path, _FORMAT) as archive:
        return _Builder(_Program(archive), device).build()


class _Program:
    """What an archive says of its program; raises ValueError, LookupError or TypeError where it is wrong."""

    def __init__(self, archive: TorchArchive) -> None:
        self._archive = archive
        program = _mapping(archive.json(f"models/{_MODEL}.json"))
        self.graph = _mapping(program["graph_module"]["graph"])
        signature = program["graph_module"]["signature"]
        self.input_specs = [_only(spec) for spec in signature["input_specs"]]
        self.output_specs = [_only(spec) for spec in signature["output_specs"]]

    def user_inputs(self) -> dict[str, InputSignature]:
        """The inputs that a caller gives, by their names in the graph."""
        found = {}
        for kind, spec in self.input_specs:
            if kind != "user_input":
                continue
            form, value = _only(spec["arg"])
            if form != "as_tensor":
                raise ValueError(f"it takes an input that is no tensor ({printable(form)})")
            meta = self.graph["tensor_values"][value["name"]]
            shape = tuple(size.get("as_int") for size in map(_mapping, meta["sizes"]))
            if not all(size is None or (type(size) is int and size > 0) for size in shape):
                raise ValueError("its input has no shape")
            name = str(_DTYPES.get(meta["dtype"], "of an unknown element type")).removeprefix("torch.")
            found[value["name"]] = InputSignature(printable(str(value["name"])), name, shape)
        return found

    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors by the name of the graph's input that stands for each."""
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
        """A tensor of the archive, with its strides."""
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
    """Makes a module of steps from a program; each value is known by its name when a step takes it."""

    def __init__(self, program: _Program, device: torch.device) -> None:
        self._program = program
        self._device = device
        self._values: dict[str, object] = {}
        """What stands in arguments for a name."""
        self._steps: list[Step] = []

    def build(self) -> ProgramModule:
        program = self._program
        tensors = {name: tensor.to(self._device) for name, tensor in program.tensors().items()}
        inputs = list(program.user_inputs())
        for name in (*tensors, *inputs):
            self._define(name)
        for kind, spec in program.input_specs:
            if kind == "constant_input":
                self._values[spec["name"]] = _constant(spec["value"])
        for node in program.graph["nodes"]:
            step = self._step(node)
            self._steps.append(step)
        outputs = []
        for kind, spec in program.output_specs:
            if kind != "user_output":
                raise ValueError(
                    f"it changes its own state ({printable(kind)}); export the module after module.eval()"
                )
            outputs.append(self._value(spec["arg"]))
        return ProgramModule(tensors, inputs, self._steps, outputs)

    def _step(self, node: _Json) -> Step:
        given = [(each["name"], self._value(each["arg"])) for each in node["inputs"]]
        return step_of(node["target"], given, [self._output(each) for each in node["outputs"]])

    def _output(self, output: _Json) -> OutputNames:
        """The name, or the names, that the program has for what an operator returns."""
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
            raise TypeError("a name of it is no text")
        self._values[name] = Computed(name)
        return name

    def _value(self, argument: _Json) -> object:
        """The value of an argument, or what stands for it until it is computed."""
        kind, value = _only(argument)
        match kind:
            case "as_none":
                return None
            case "as_float":
                return _float(value)
            case "as_floats":
                return [_float(each) for each in value]
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
        """A list as an argument; with computed values in it, a step makes it."""
        if not any(isinstance(each, Computed) for each in items):
            return items
        made = Computed(len(self._steps))
        self._steps.append(list_of(items, len(self._steps)))
        return made

    def _size(self, argument: _Json) -> object:
        kind, value = _only(argument)
        return self._values[value] if kind == "as_name" else _plain(value)


def _only(union: object) -> tuple[str, Any]:
    """The one field that a union of the format has."""
    [(kind, value)] = _mapping(union).items()
    return kind, value


def _mapping(value: object) -> _Json:
    if not isinstance(value, dict):
        raise TypeError("a part of it is no object")
    return value


def _whole(size: object) -> int:
    kind, value = _only(size)
    if kind != "as_int" or type(value) is not int or value < 0:
        raise ValueError("a tensor of it has no fixed shape")
    return value


def _plain(value: object) -> Any:
    """A number, a truth value or a text."""
    if not isinstance(value, bool | int | float | str):
        raise TypeError("an argument of it is no plain value")
    return value


def _float(value: object) -> float:
    """A number; those that are not finite are texts, which JSON has no other form for."""
    return float(_plain(value))


def _constant(value: object) -> Any:
    kind, content = _only(value)
    return None if kind == "as_none" else _plain(content)
