"""``agent export``: writes a model that is built in code to an ONNX file."""

from __future__ import annotations

import importlib
import tempfile
from pathlib import Path

import click

from inferometer.agent.artifacts.files import resolve_artifacts
from inferometer.agent.hardware.environment import PredictorOptions, Weights
from inferometer.agent.inference.requirements import require_supported
from inferometer.agent.inference.selection import select_model
from inferometer.client.cli.command import FILE, SEED, WEIGHTS, Command, current_invocation, option
from inferometer.manifests.errors import OutputError

_FRAMEWORK = "PyTorch"


@click.command(cls=Command)
@option("--model_name", required=True, metavar="NAME", help="Model.")
@option(
    "--model_version",
    metavar="VERSION",
    help="Version or constraint.  [default: the highest that has the weights]",
)
@option("--weights", type=WEIGHTS, default="pretrained", help="Weights to export.")
@option("--seed", type=SEED, default=0, metavar="N", help="Seed of random weights.")
@option("-o", "--output", required=True, type=FILE, metavar="FILE", help="The .onnx file.")
def export(model_name: str, model_version: str | None, weights: str, seed: int, output: Path) -> None:
    """Export a PyTorch model as an ONNX graph for batches of any size.

    The file is written completely or not at all; an existing file is not replaced.
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
    waiting = invocation.waiting
    with waiting.during("importing PyTorch"):
        pytorch = importlib.import_module("inferometer.agent.frameworks.pytorch.predictor")
    options = PredictorOptions(weights=chosen, seed=seed)
    try:
        with (
            waiting.during(f"exporting {manifest.name} {manifest.version}"),
            tempfile.TemporaryDirectory(dir=output.parent, prefix=".export-") as folder,
            pytorch.PyTorchPredictor(manifest, artifacts, options) as predictor,
        ):
            partial = Path(folder) / "model.onnx"
            predictor.export_onnx(partial)
            partial.rename(output)
    except OSError as error:
        raise OutputError(f"{output}: cannot be written: {error.strerror or error}") from error
    click.echo(f"exported    {manifest.name} {manifest.version} to {output} ({output.stat().st_size} bytes)")
