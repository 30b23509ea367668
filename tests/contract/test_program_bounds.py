"""The bounds that an exported program states: synthetic inputs and predictions of zeros keep to them."""

from __future__ import annotations

import json
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tritonclient.grpc as triton

from inferometer.agent.frameworks.pytorch.predictor import read_program_sizes
from inferometer.agent.inference.given_models import model_of_file
from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.session import Session, SessionOptions, open_session
from inferometer.agent.server.server import AgentServer, ServerOptions
from inferometer.agent.tasks.predictions import RawOutputs
from inferometer.client.remote.native.agent import open_remote_agent
from inferometer.evaluators.datasets.opening import DatasetChoice
from inferometer.evaluators.load.target import synthetic_tensors
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.errors import ArtifactError, ConfigurationError
from inferometer.manifests.inputs import AxisSizes
from tests.model_files import save_program

MANIFEST = """
name: {name}
framework: {{name: PyTorch, version: "*"}}
inputs: [{{type: tensor, parameters: {{dimensions: [-1], element_type: {dtype}, input_layer: {layer}}}}}]
output: {{type: raw}}
model: {{graph_path: {name}.pt2}}
"""
SIZES = {"Positions": 64, "Sound": 400, "Blocks": 24}
"""The size of the dynamic axis of each model in synthetic inputs, which are of 128 where nothing is known."""


class Positions(torch.nn.Module):
    """Adds the place's row of a table of 64."""

    def __init__(self) -> None:
        super().__init__()
        self.places = torch.nn.Embedding(64, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.places(torch.arange(ids.shape[1])) + ids.unsqueeze(-1)
        return found


class Sound(torch.nn.Module):
    """A convolution of 400 samples."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv1d(1, 1, 400)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.convolution(x.unsqueeze(1)).mean(-1)
        return found


class Blocks(torch.nn.Module):
    """Takes multiples of 12."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(x.shape[0], -1, 12).sum(-1)


def export(folder: Path) -> None:
    batch, auto = torch.export.Dim("batch", max=1024), torch.export.Dim.AUTO  # type: ignore[attr-defined] # of torch 2.6
    ids, sound = torch.ones(2, 6, dtype=torch.int64), torch.ones(2, 800)
    models: dict[str, tuple[torch.nn.Module, torch.Tensor, Any]] = {
        "Positions": (Positions(), ids, torch.export.Dim("length", min=2, max=64)),
        "Sound": (Sound(), sound, auto),
        "Blocks": (Blocks(), torch.ones(2, 24), 12 * torch.export.Dim("blocks", max=9)),
    }
    for name, (model, example, axis) in models.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch's own deprecations
            program = torch.export.export(model.eval(), (example,), dynamic_shapes=({0: batch, 1: axis},))
            torch.export.save(program, folder / f"{name}.pt2")
        [layer] = [
            spec.arg.name for spec in program.graph_signature.input_specs if spec.kind.name == "USER_INPUT"
        ]
        dtype = str(example.dtype).removeprefix("torch.")
        (folder / f"{name}.yml").write_text(MANIFEST.format(name=name, dtype=dtype, layer=layer))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("programs")
    export(made)
    return made


def opened(folder: Path, name: str) -> Session:
    return open_session(Catalog([folder]).find_models(name)[0], SessionOptions(), Registry())


@pytest.mark.parametrize(("name", "size"), SIZES.items())
def test_synthetic_inputs_are_within_the_bounds(folder: Path, name: str, size: int) -> None:
    with opened(folder, name) as session:
        manifest = session.description.manifest
        made = synthetic_tensors([each.parameters for each in manifest.inputs], 0, count=2)
        assert f"dynamic axes of {size}" in made.source
        for row in made.rows:
            assert session.predict_tensor(row).failures == ()
        dataset = DatasetChoice(synthetic=2).open_for(manifest, Catalog([folder]), None)
        assert f"dynamic axes of {size}" in str(dataset.identity)
        [result] = session.predict_batches([list(dataset)])
        assert result.failures == ()


def test_a_size_that_the_model_does_not_take_is_refused_in_one_line(folder: Path) -> None:
    with opened(folder, "Positions") as session:
        inputs = [each.parameters for each in session.description.manifest.inputs]
        with pytest.raises(
            ConfigurationError, match=r'^sequence_length is 65; the model\'s "ids" takes 2 to 64$'
        ):
            synthetic_tensors(inputs, 0, size=65)
        assert synthetic_tensors(inputs, 0, size=64).rows[0]["ids"].shape == (1, 64)


@pytest.fixture(scope="module")
def agent(folder: Path) -> Iterator[AgentServer]:
    with AgentServer(Catalog([folder]), Registry(), ServerOptions(port=0)) as started:
        yield started


@pytest.mark.parametrize(("name", "size"), SIZES.items())
def test_a_client_of_an_agent_knows_the_bounds(
    agent: AgentServer, folder: Path, name: str, size: int
) -> None:
    with open_remote_agent(agent.address, name) as remote, opened(folder, name) as local:
        found = remote.description.manifest
        assert found.tensors == local.description.manifest.tensors
        made = synthetic_tensors([each.parameters for each in found.inputs], 0, count=1)
        assert f"dynamic axes of {size}" in made.source
        assert remote.predict_tensor(made.rows[0]).failures == ()


@pytest.mark.parametrize(
    ("name", "shape"), [("Positions", [-1, -1, 2]), ("Sound", [-1, 1]), ("Blocks", [-1, -1])]
)
def test_outputs_are_found_out_within_the_bounds(agent: AgentServer, name: str, shape: list[int]) -> None:
    with triton.InferenceServerClient(agent.address) as client:
        [output] = client.get_model_metadata(name).outputs
        assert list(output.shape) == shape
        [output] = client.get_model_config(name).config.output
        assert list(output.dims) == shape[1:]


def rewritten(folder: Path, target: Path, change: Any) -> Path:
    """A program whose description is another one."""
    with zipfile.ZipFile(folder / "Positions.pt2") as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name.endswith("models/model.json"):
                program = json.loads(content)
                change(program)
                content = json.dumps(program).encode()
            new.writestr(name, content)
    return target


@pytest.mark.parametrize("bound", ["64", 64.5, [64], {"as_int": 64}, True, "__import__('os')"])
def test_a_bound_is_a_whole_number_and_nothing_else(folder: Path, tmp_path: Path, bound: object) -> None:
    def change(program: dict[str, Any]) -> None:
        for each in program["range_constraints"].values():
            each["max_val"] = bound

    with pytest.raises(ArtifactError, match="one of its bounds is not a whole number"):
        read_program_sizes(rewritten(folder, tmp_path / "changed.pt2", change))


def test_an_expression_is_not_evaluated(folder: Path, tmp_path: Path) -> None:
    mark = tmp_path / "ran"

    def change(program: dict[str, Any]) -> None:
        for size in program["graph_module"]["graph"]["tensor_values"]["ids"]["sizes"]:
            size["as_expr"]["expr_str"] = f"__import__('pathlib').Path({str(mark)!r}).touch()"

    found = read_program_sizes(rewritten(folder, tmp_path / "changed.pt2", change))
    assert found == {"ids": (AxisSizes(example=2), AxisSizes(example=6))}
    assert not mark.exists()


class Doubled(torch.nn.Module):
    """Twice its input, as floats."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(torch.float32) * 2


@pytest.mark.parametrize("dtype", ["int8", "int16", "uint16", "uint32"])
def test_a_program_of_pytorch_takes_narrow_integers(tmp_path: Path, dtype: str) -> None:
    path = save_program(Doubled(), tmp_path / "net.pt2", torch.ones((2, 3), dtype=getattr(torch, dtype)))
    given = model_of_file(path, Registry())
    assert given.manifest.tensors[0].element_type.value == dtype
    ends = np.iinfo(dtype)
    given_values = np.array([[ends.min, ends.max // 2, 1]], dtype)
    with open_session(given.manifest, SessionOptions(), Registry(), given=given) as session:
        outputs = session.predict_tensor(given_values).outputs
        assert isinstance(outputs, RawOutputs)
        [found] = outputs.tensors.values()
        np.testing.assert_array_equal(found, 2 * given_values.astype(np.float32))
