"""``agent export``: a model that is built in code, as an ONNX file."""

from __future__ import annotations

import importlib
import tempfile
from pathlib import Path

import click

from agent.artifacts import resolve_artifacts
from agent.predictor import PredictorOptions, Weights
from agent.requirements import require_supported
from agent.selection import select_model
from client.command import Command
from client.invocation import current_invocation
from manifests.errors import OutputError

_FRAMEWORK = "PyTorch"


@click.command(cls=Command)
@click.option("--model_name", required=True, metavar="NAME", help="Model.")
@click.option(
    "--model_version",
    metavar="VERSION",
    help="Version or constraint.  [default: the highest that has the weights]",
)
@click.option(
    "--weights",
    type=click.Choice(["pretrained", "random"], case_sensitive=False),
    default="pretrained",
    show_default=True,
    help="Which weights the file gets.",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**63 - 1),
    default=0,
    show_default=True,
    metavar="N",
    help="Of random ones.",
)
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), metavar="FILE", help="The .onnx file."
)
def export(model_name: str, model_version: str | None, weights: str, seed: int, output: Path) -> None:
    """Write a model of PyTorch's as an ONNX graph, for batches of any size.

    The file is there as a whole or not at all; one that is there already is not replaced.
    """
    invocation = current_invocation()
    if output.exists():
        raise OutputError(f"{output}: exists; name another file, or remove it")
    if not output.parent.is_dir():
        raise OutputError(f"{output}: the folder {output.parent} does not exist")
    chosen = Weights(weights.lower())
    manifest = select_model(
        invocation.catalog, invocation.registry, model_name, model_version, _FRAMEWORK, chosen
    )
    artifacts = resolve_artifacts(
        require_supported(manifest), weights=chosen is Weights.PRETRAINED, cache=invocation.cache
    )
    if manifest.model.architecture is not None:
        found = invocation.architectures.find(manifest.model.architecture, _FRAMEWORK)
        artifacts = artifacts.with_architecture(found)
    pytorch = importlib.import_module("agent.frameworks.pytorch")
    options = PredictorOptions(weights=chosen, seed=seed)
    try:
        with (
            tempfile.TemporaryDirectory(dir=output.parent, prefix=".export-") as folder,
            pytorch.PyTorchPredictor(manifest, artifacts, options) as predictor,
        ):
            partial = Path(folder) / "model.onnx"
            predictor.export_onnx(partial)
            partial.rename(output)
    except OSError as error:
        raise OutputError(f"{output}: cannot be written: {error.strerror or error}") from error
    click.echo(f"exported    {manifest.name} {manifest.version} to {output} ({output.stat().st_size} bytes)")
