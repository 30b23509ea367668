"""docs/models.md matches the manifests of the shipped models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from inferometer.manifests.catalog import Catalog
from inferometer.manifests.schema import ModelManifest

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
FRAMEWORKS = ("PyTorch", "ONNXRuntime", "MXNet")
PUBLISHERS = {"download.pytorch.org": "torchvision", "apache-mxnet": "gluon"}


def expected_rows() -> Iterator[str]:
    """A row for each network with its weights; the frameworks that share it are in one."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for model in Catalog().models:
        rows.setdefault(cells(model), []).append(model.framework.name)
    for (name, version, *rest), found in rows.items():
        frameworks = ", ".join(framework for framework in FRAMEWORKS if framework in found)
        yield f"| {' | '.join((name, version, frameworks, *rest))} |"


def cells(model: ModelManifest) -> tuple[str, ...]:
    """The cells of a model's row, without its frameworks."""
    files, attributes = model.model, model.attributes
    publisher = next((name for host, name in PUBLISHERS.items() if host in files.base_url), "in the package")
    has_weights = files.weights_path or files.graph_path
    accuracy = f"{attributes['Top1']} / {attributes['Top5']}" if "Top1" in attributes else "–"
    return (
        model.name,
        model.version,
        f"`{files.architecture}`" if files.architecture else "in the model file",
        f"{attributes['parameters']:,}",
        publisher if has_weights else "–",
        accuracy,
        model.license.partition(" (")[0] if has_weights else "–",
    )


def test_the_table_holds_every_shipped_model_as_its_manifest_has_it() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    start = lines.index("|---|---|---|---|---|---|---|---|") + 1
    end = lines.index("", start)
    assert lines[start:end] == list(expected_rows())
