"""Exported programs (``.pt2``) as modules, without PyTorch's own loader.

``torch.export.load`` unpickles constants, evaluates expressions and looks up any name within ``torch``. Here
a program is data: tensors without pickles, and a graph of ATen's operators, none of which opens a file, and
of arithmetic on sizes. Anything else is refused.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch

from inferometer.agent.artifacts.signature import InputSignature
from inferometer.agent.artifacts.torch_archives import TorchArchive, open_archive
from inferometer.manifests.errors import one_line, printable

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
_ATEN = re.compile(r"torch\.ops\.aten\.(\w+)\.(\w+)", re.ASCII)
_REFUSED_ARGUMENTS = frozenset({"filename"})
_ON_SIZES: Mapping[str, Callable[..., Any]] = {
    **{
        f"_operator.{name}": getattr(operator, name)
        for name in (
            "add",
            "and_",
            "eq",
            "floordiv",
            "ge",
            "gt",
            "le",
            "lt",
            "mod",
            "mul",
            "ne",
            "neg",
            "or_",
            "pos",
            "sub",
            "truediv",
        )
    },
    **{f"math.{name}": getattr(math, name) for name in ("ceil", "floor", "trunc")},
    **{
        f"torch.{name}": getattr(torch, name)
        for name in ("sym_float", "sym_int", "sym_ite", "sym_max", "sym_min", "sym_not", "sym_sum")
        if hasattr(torch, name)
    },
}

_Json: TypeAlias = Mapping[str, Any]


def read_program_inputs(path: Path) -> tuple[InputSignature, ...]:
    """Returns the inputs of an exported program.

    Raises:
        ArtifactError: It is no exported program that can be read; see ``build_program``.
    """
    with open_archive(path, _FORMAT) as archive:
        return tuple(_Program(archive).user_inputs().values())


def build_program(path: Path, device: torch.device) -> torch.nn.Module:
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
    """Makes a graph of ``torch.fx`` from a program; only names that are made here get into its code."""

    def __init__(self, program: _Program, device: torch.device) -> None:
        self._program = program
        self._device = device
        self._graph = torch.fx.Graph()
        self._values: dict[str, Any] = {}

    def build(self) -> torch.nn.Module:
        program, root = self._program, torch.nn.Module()
        for number, (name, tensor) in enumerate(program.tensors().items()):
            root.register_buffer(f"tensor{number}", tensor.to(self._device))
            self._values[name] = self._graph.get_attr(f"tensor{number}")
        for number, name in enumerate(program.user_inputs()):
            self._values[name] = self._graph.placeholder(f"input{number}")
        for kind, spec in program.input_specs:
            if kind == "constant_input":
                self._values[spec["name"]] = _constant(spec["value"])
        for node in program.graph["nodes"]:
            self._add(node)
        outputs = []
        for kind, spec in program.output_specs:
            if kind != "user_output":
                raise ValueError(
                    f"it changes its own state ({printable(kind)}); export the module after module.eval()"
                )
            outputs.append(self._value(spec["arg"]))
        self._graph.output(tuple(outputs))
        module = torch.fx.GraphModule(root, self._graph)
        names = list(program.user_inputs())  # the module's own arguments are numbered
        module.input_names = names  # type: ignore[assignment]  # as torch has it, an attribute is a tensor
        return module

    def _add(self, node: _Json) -> None:
        target = node["target"]
        given = [(each["name"], self._value(each["arg"])) for each in node["inputs"]]
        if target in _ON_SIZES:
            made = self._graph.call_function(_ON_SIZES[target], tuple(value for _, value in given))
            self._keep(node["outputs"], made)
            return
        called = _operator(target)
        made = self._graph.call_function(called, *_call_of(called, given))
        returns = called._schema.returns
        if len(returns) == 1:
            self._keep(node["outputs"], made)
        else:
            for number, output in enumerate(node["outputs"]):
                self._keep([output], self._graph.call_function(operator.getitem, (made, number)))

    def _keep(self, outputs: Sequence[_Json], made: torch.fx.Node) -> None:
        """Gives what an operator returned the name, or the names, that the program has for it."""
        for output in outputs[:1]:
            kind, value = _only(output)
            if kind in {"as_tensor", "as_optional_tensor"}:
                self._values[(value if kind == "as_tensor" else _only(value)[1])["name"]] = made
            elif kind in {"as_sym_int", "as_sym_float", "as_sym_bool"}:
                self._values[value["as_name"]] = made
            elif kind == "as_tensors":
                for number, each in enumerate(value):
                    item = self._graph.call_function(operator.getitem, (made, number))
                    self._values[each["name"]] = item
            elif kind != "as_none":
                raise ValueError(f"an operator returns {printable(kind)}, which is not supported")

    def _value(self, argument: _Json) -> Any:
        """The value of an argument, or the node that computes it."""
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
                return [self._values[each["name"]] for each in value]
            case "as_sym_int" | "as_sym_float" | "as_sym_bool":
                return self._size(value)
            case "as_sym_ints" | "as_sym_floats" | "as_sym_bools":
                return [self._size(each) for each in value]
            case "as_optional_tensor":
                return self._value(value)
            case "as_optional_tensors":
                return [self._value(each) for each in value]
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

    def _size(self, argument: _Json) -> Any:
        kind, value = _only(argument)
        return self._values[value] if kind == "as_name" else _plain(value)


def _operator(target: object) -> torch._ops.OpOverload:
    """An operator of ATen; raises ValueError for anything else that a program may name."""
    text = target if isinstance(target, str) else ""
    match = _ATEN.fullmatch(text)
    packet = getattr(torch.ops.aten, match[1], None) if match else None
    if match and isinstance(packet, torch._ops.OpOverloadPacket):
        found = getattr(packet, match[2], None)
        # what has no kernel of the dispatcher is TorchScript's, and may read and write files
        if (
            isinstance(found, torch._ops.OpOverload)
            and torch._C._dispatch_has_kernel(str(found._name))
            and _REFUSED_ARGUMENTS.isdisjoint(argument.name for argument in found._schema.arguments)
        ):
            return found
    raise ValueError(f"it uses {one_line(printable(text), 80)}; accepted: ATen's operators without files")


def _call_of(
    called: torch._ops.OpOverload, given: Sequence[tuple[str, Any]]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call: by place as long as none is left out, and by name."""
    left = dict(given)
    places: list[Any] = []
    for argument in called._schema.arguments:
        if argument.kwarg_only or argument.name not in left:
            break
        places.append(left.pop(argument.name))
    return tuple(places), left


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
