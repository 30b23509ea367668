"""The choice of the dataset that a model is evaluated over."""

from __future__ import annotations

from agent.artifact_cache import ArtifactCache
from evaluators.datasets.base import Dataset
from evaluators.datasets.opening import open_dataset
from manifests.catalog import Catalog
from manifests.errors import ConfigurationError
from manifests.schema import ModelManifest


def dataset_of_model(
    catalog: Catalog,
    model: ModelManifest,
    category: str | None = None,
    cache: ArtifactCache | None = None,
) -> Dataset:
    """Opens the dataset that a model's manifest names; it must be of the ``category``, where one is given.

    One that is at a URL is downloaded into the ``cache``.

    Raises:
        ConfigurationError: It names none.
        UnknownDatasetError: It names one that no manifest describes, or of another category.
        DatasetError: The dataset cannot be opened.
    """
    if model.dataset is None:
        known = ", ".join(dict.fromkeys(dataset.name for dataset in catalog.datasets))
        raise ConfigurationError(
            f"model {model.name} names no dataset; give --dataset_name (known: {known}) or --dataset_path"
        )
    return open_dataset(catalog.find_dataset(model.dataset, category=category), cache)
