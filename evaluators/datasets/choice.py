"""The choice of a dataset: how a user names it, and how it is opened for a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.artifacts.cache import ArtifactCache
from inferometer.evaluators.datasets.base import Dataset, Subset
from inferometer.evaluators.datasets.detection import may_hold_tensors
from inferometer.evaluators.datasets.memory import ArrayInputs, NamedArrayInputs, SyntheticDataset
from inferometer.evaluators.datasets.opening import open_dataset, open_path
from inferometer.evaluators.datasets.urls import UrlsDataset
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.errors import ConfigurationError, DatasetError
from inferometer.manifests.inputs import TensorSpec
from inferometer.manifests.schema import ModelManifest


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetChoice:
    """The dataset of an evaluation; with neither name, path nor list it is the one that the model names.

    Attributes:
        name: The name in its manifest.
        path: A dataset in one of the formats of ``detection.BACKENDS``; with a name too, it is where that
            dataset lies, which the user obtained.
        backend: The name of its format; None finds it out.
        category: The category that a dataset of a name must have, and one at a path gets; None means any.
        urls_path: A file with one URL or path a line.
        duplicates: How many times that list is gone through.
        synthetic: A number of random tensors instead, which ``seed`` draws; for speed only.
        array: Inputs in memory instead: samples × the shape of the model's input; of a model with several, an
            array for each, by name or in its order.
        sample_ids: The ids of those of its samples that count; None means all.
        sequence_length: The size that dynamic axes have in ``synthetic`` inputs; None is the model's own.

    Raises:
        ConfigurationError: More than one is named.
    """

    name: str | None = None
    path: Path | None = None
    backend: str | None = None
    category: str | None = None
    urls_path: Path | None = None
    duplicates: int = 1
    synthetic: int | None = None
    seed: int = 0
    array: NDArray[Any] | Mapping[str, NDArray[Any]] | Sequence[NDArray[Any]] | None = field(
        default=None, compare=False
    )
    sample_ids: tuple[str, ...] | None = None
    sequence_length: int | None = None

    def __post_init__(self) -> None:
        if self.sample_ids is not None and (self.synthetic is not None or self.array is not None):
            raise ConfigurationError("sample_ids are those of a dataset; leave them out")
        if self.backend and not self.path:
            raise ConfigurationError("data_backend is the format of what dataset_path names; give both")
        if self.synthetic is not None and (self.is_named or self.array is not None):
            raise ConfigurationError("synthetic needs no dataset; leave out dataset_name and dataset_path")
        if self.array is not None and self.is_named:
            raise ConfigurationError("inputs are the dataset; leave out the other one")

    @property
    def samples(self) -> int | None:
        """The number of inputs in memory; None if they are not in memory."""
        if self.array is None or isinstance(self.array, np.ndarray):
            return None if self.array is None else len(self.array)
        arrays = list(self.array.values() if isinstance(self.array, Mapping) else self.array)
        return min(map(len, arrays), default=0)

    @property
    def is_named(self) -> bool:
        """Whether the user names a dataset."""
        return bool(self.name or self.path or self.urls_path)

    @property
    def holds_images(self) -> bool:
        """Whether it has only images; an .npz, an LMDB and that of a manifest may have tensors."""
        return bool(self.urls_path) or (self.path is not None and not may_hold_tensors(self.path))

    def open(
        self, catalog: Catalog, cache: ArtifactCache | None, tensors: Sequence[TensorSpec] = ()
    ) -> Dataset | None:
        """Opens the dataset; None where the model is to name it.

        Args:
            catalog: The datasets.
            cache: Gets one that is at a URL; with None, all are on this machine.
            tensors: The tensors of the model, whose names are those of the arrays in an ``.npz``.

        Raises:
            UnknownDatasetError: The catalogue has none of that name and category.
            DatasetError: It cannot be opened.
            ConfigurationError: A path is given beside the name of a dataset that has its own.
        """
        opened = self._open(catalog, cache, tensors)
        return None if opened is None else self._subset(opened)

    def _open(
        self, catalog: Catalog, cache: ArtifactCache | None, tensors: Sequence[TensorSpec]
    ) -> Dataset | None:
        if self.urls_path:
            return UrlsDataset(self.urls_path, duplicate_input=self.duplicates)
        if self.name and self.path:
            obtained = (dataset.name.casefold() for dataset in catalog.datasets if dataset.obtain)
            if self.name.casefold() not in obtained:
                raise ConfigurationError(
                    "dataset_path and dataset_name both name a dataset; give one of them"
                )
        if self.name:
            manifest = catalog.find_dataset(self.name, category=self.category)
            return open_dataset(manifest.at(self.path) if self.path else manifest, cache, tensors)
        if self.path:
            return open_path(self.path, self.category or "vision", self.backend, tensors)
        return None

    def _subset(self, dataset: Dataset) -> Dataset:
        """Returns the samples that count."""
        if self.sample_ids is None:
            return dataset
        try:
            return Subset(dataset, self.sample_ids)
        except DatasetError:
            dataset.close()
            raise

    def open_early(self, catalog: Catalog, cache: ArtifactCache | None) -> Dataset | None:
        """Opens the dataset, so that errors in it are found before a model is loaded; see ``open``.

        Returns None where the model is to name it, or may have the names of its arrays, as of an ``.npz``.
        """
        place = str(self.path) if self.path is not None and self.path.is_file() else ""
        if self.name and not self.path and not self.urls_path:
            place = catalog.find_dataset(self.name, category=self.category).path
        return None if place.casefold().endswith(".npz") else self.open(catalog, cache)

    def open_for(self, model: ModelManifest, catalog: Catalog, cache: ArtifactCache | None) -> Dataset:
        """Opens the dataset; where none is chosen, that which a model's manifest names. See ``open``.

        Raises:
            ConfigurationError: The manifest names none.
            DatasetError: Inputs in memory do not fit the model.
        """
        tensors = model.tensors
        if self.synthetic is not None:
            return SyntheticDataset(tensors, self.synthetic, self.seed, self.sequence_length)
        if isinstance(self.array, np.ndarray) and len(tensors) == 1:
            return ArrayInputs(self.array, tensors[0])
        if self.array is not None:
            arrays = (self.array,) if isinstance(self.array, np.ndarray) else self.array
            return NamedArrayInputs(arrays, tensors)
        if (chosen := self.open(catalog, cache, tensors)) is not None:
            return chosen
        if model.dataset is None:
            known = ", ".join(dict.fromkeys(dataset.name for dataset in catalog.datasets))
            raise ConfigurationError(
                f"model {model.name} names no dataset; give dataset_name (known: {known}) or dataset_path, "
                "or synthetic for its speed only"
            )
        dataset = catalog.find_dataset(model.dataset, category=self.category)
        return self._subset(open_dataset(dataset, cache, tensors))
