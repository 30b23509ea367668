"""What ONNX Runtime's optimiser joins: read from the graph that it writes."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import onnx

from inferometer.agent.frameworks.onnxruntime.operators.graphs import Graph
from inferometer.agent.frameworks.onnxruntime.sessions import open_session
from inferometer.agent.hardware.device import Device
from inferometer.agent.operators.runner import NotSupportedHereError


def open_fused(model: bytes, parts: Graph, device: Device, threads: int) -> tuple[Any, str]:
    """Opens a session, and returns it with the nodes of its optimised graph in order.

    Args:
        model: The graph that is optimised.
        parts: The graph of the parts, in which each node is an operator.
        device: The device.
        threads: Those of an operator.

    Raises:
        NotSupportedHereError: Each of the parts is still a node of its own.
    """
    with TemporaryDirectory() as folder:
        written = Path(folder) / "optimized.onnx"
        session = open_session(model, device, threads, optimized=written)
        nodes = list(onnx.load(written).graph.node)
    kinds = {each.op_type for each in nodes}
    if {each.op_type for each in parts.nodes} <= kinds:
        raise NotSupportedHereError(
            f"ONNX Runtime's optimiser leaves the parts as they are: {', '.join(map(_shown, nodes))}"
        )
    return session, ", ".join(map(_shown, nodes))


def _shown(each: onnx.NodeProto) -> str:
    """The operator, with the activation that it applies."""
    activations = [str(found.s, "utf-8") for found in each.attribute if found.name == "activation"]
    return f"{each.op_type}({activations[0]})" if activations and activations[0] else each.op_type
