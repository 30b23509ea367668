"""The catalogue of all manifests, by name and version."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from packaging.utils import canonicalize_version
from packaging.version import Version

from inferometer.manifests.errors import (
    ConfigurationError,
    FrameworkUnavailableError,
    ManifestError,
    NotFoundError,
    UnknownDatasetError,
    UnknownModelError,
    suggestion,
)
from inferometer.manifests.files import check_directories, manifest_files
from inferometer.manifests.loader import load_manifest
from inferometer.manifests.schema import DatasetManifest, FrameworkManifest, Manifest, ModelManifest
from inferometer.manifests.versions import Constraint, InvalidConstraintError

_Versioned = TypeVar("_Versioned", ModelManifest, DatasetManifest)


class Catalog:
    """The program's manifests and those in the user's ``directories``, read on first use.

    Of manifests with the same name, version and framework, the one in the earliest directory is used; the
    program's own come last. An invalid file does not affect the others: its error is added to ``problems``.

    Args:
        directories: The user's directories.
        dataset_paths: The locations of datasets that users obtain themselves, by name.

    Raises:
        ConfigurationError: A directory does not exist, or is not a directory.
    """

    def __init__(
        self, directories: Sequence[Path] = (), dataset_paths: Mapping[str, Path] = MappingProxyType({})
    ) -> None:
        check_directories(directories)
        self._directories = tuple(directories)
        self._dataset_paths = {name.casefold(): path for name, path in dataset_paths.items()}

    @property
    def problems(self) -> tuple[ManifestError, ...]:
        """The errors of invalid files."""
        return self._content[1]

    @property
    def models(self) -> tuple[ModelManifest, ...]:
        """Every model that is not hidden, in alphabetical order, with the highest version first."""
        return tuple(m for m in self._models if not m.hidden)

    @property
    def datasets(self) -> tuple[DatasetManifest, ...]:
        """Every dataset, in alphabetical order, with the highest version first."""
        return tuple(m for m in self._content[0] if isinstance(m, DatasetManifest))

    @property
    def frameworks(self) -> tuple[FrameworkManifest, ...]:
        """Every framework's manifest, in alphabetical order."""
        return tuple(m for m in self._content[0] if isinstance(m, FrameworkManifest))

    def find_model(
        self,
        name: str,
        version: str | None,
        frameworks: Mapping[str, str | None],
        preference: Callable[[ModelManifest], int] = lambda _: 0,
    ) -> ModelManifest:
        """Returns the highest version of a model that any of the installed ``frameworks`` can run.

        Hidden models are included. The case of ``name`` does not matter; ``version`` may be a constraint. The
        frameworks are given in order of preference, each with its installed version or None. A higher
        ``preference`` takes precedence over a higher version.

        Raises:
            UnknownModelError: No manifest matches this name, version and framework.
            FrameworkUnavailableError: No installed framework meets the manifest's constraint.
        """
        named = _named(name, self._models, UnknownModelError, self.problems)
        order = {framework.casefold(): rank for rank, framework in enumerate(frameworks)}
        installed = {framework.casefold(): found for framework, found in frameworks.items()}
        fitting = [m for m in named if m.framework.name.casefold() in order]
        if not fitting:
            have = ", ".join(sorted({m.framework.name for m in named}))
            asked = ", ".join(frameworks) or "no framework"
            raise UnknownModelError(
                f'model "{named[0].name}" has no manifest for {asked}; it has one for: {have}'
            )
        candidates = _of_version(fitting, version, UnknownModelError)
        runnable = [m for m in candidates if m.runs_in(installed[m.framework.name.casefold()])]
        if not runnable:
            raise FrameworkUnavailableError(
                f'model "{named[0].name}" needs '
                + " or ".join(dict.fromkeys(f"{m.framework.name} {m.framework.version}" for m in candidates))
                + "; installed: "
                + ", ".join(f"{name} {found or '(not installed)'}" for name, found in frameworks.items())
            )
        best = max((preference(m), Version(m.version)) for m in runnable)
        return min(
            (m for m in runnable if (preference(m), Version(m.version)) == best),
            key=lambda m: order[m.framework.name.casefold()],
        )

    def named(self, name: str, version: str | None = None) -> tuple[str, str | None]:
        """Returns the name and the version of the model that a user names by its architecture, too.

        Matches are tried in this order: a manifest with exactly this name, an architecture with this name (at
        its highest version), a manifest whose name differs only in case. So ``alexnet`` names the
        architecture of BVLC-AlexNet, but ``AlexNet`` names another model.

        Raises UnknownModelError if neither a manifest nor an architecture has this name.
        """
        wanted, names = name.strip(), [model.name for model in self.models]
        if wanted in names:
            return wanted, version
        architectures = [(model.model.architecture or "").casefold() for model in self.models]
        built = [
            model
            for model, architecture in zip(self.models, architectures, strict=True)
            if architecture == wanted.casefold()
        ]
        if built:
            highest = max(built, key=lambda model: Version(model.version))
            return highest.name, version or highest.version
        if wanted.casefold() in map(str.casefold, names):
            return wanted, version
        of_program = sorted({each for each in architectures if each and ":" not in each})
        raise UnknownModelError(
            f'unknown model "{name}"; {suggestion(name, dict.fromkeys((*of_program, *names)))}'
        )

    def find_models(self, name: str, version: str | None = None) -> tuple[ModelManifest, ...]:
        """Returns all manifests of a model, even hidden ones, for any framework; the highest version first.

        Raises UnknownModelError if no manifest matches this name and version.
        """
        named = _named(name, self._models, UnknownModelError, self.problems)
        return tuple(_of_version(named, version, UnknownModelError))

    def find_dataset(
        self, name: str, version: str | None = None, category: str | None = None
    ) -> DatasetManifest:
        """Returns the highest version of a dataset that meets ``version``, a version or constraint.

        For a dataset that users obtain themselves, its path is the one given to the catalogue, if any.

        Raises UnknownDatasetError if no manifest matches this name, version and category.
        """
        datasets = [
            d for d in self.datasets if category is None or d.category.casefold() == category.casefold()
        ]
        if not datasets:
            known = ", ".join(sorted({d.category for d in self.datasets}))
            raise UnknownDatasetError(f'no dataset is of category "{category}"; known: {known}')
        others = {d.category for d in self.datasets if d.name.casefold() == name.strip().casefold()}
        if others and not any(d.category in others for d in datasets):
            raise UnknownDatasetError(f'dataset "{name}" is of category "{min(others)}", not "{category}"')
        named = _named(name, datasets, UnknownDatasetError, self.problems)
        found = _of_version(named, version, UnknownDatasetError)[0]
        path = self._dataset_paths.get(found.name.casefold())
        return found.at(path) if path is not None and found.obtain else found

    @property
    def _models(self) -> tuple[ModelManifest, ...]:
        return tuple(m for m in self._content[0] if isinstance(m, ModelManifest))

    @cached_property
    def _content(self) -> tuple[tuple[Manifest, ...], tuple[ManifestError, ...]]:
        found: dict[tuple[str, ...], Manifest] = {}
        problems: list[ManifestError] = []
        for path in manifest_files(self._directories):
            try:
                manifest = load_manifest(path)
            except ManifestError as error:
                problems.append(error)
            else:
                found.setdefault(_key(manifest), manifest)
        return _in_order(found), tuple(problems)


def _key(manifest: Manifest) -> tuple[str, ...]:
    match manifest:
        case ModelManifest():
            framework = manifest.framework
            return (
                "model",
                manifest.name.casefold(),
                canonicalize_version(manifest.version),
                framework.name.casefold(),
                framework.version,
            )
        case DatasetManifest():
            return ("dataset", manifest.name.casefold(), canonicalize_version(manifest.version))
        case FrameworkManifest():
            return ("framework", manifest.name.casefold())
    raise TypeError(f"{type(manifest).__name__} is not a kind of manifest")


def _in_order(found: Mapping[tuple[str, ...], Manifest]) -> tuple[Manifest, ...]:
    """Sorts manifests by kind and name, then by version, highest first, and then by framework."""
    ordered = sorted(found.items(), key=lambda item: item[0][3:4])
    # a framework's key has no version
    ordered.sort(key=lambda item: Version((*item[0], "0")[2]), reverse=True)
    ordered.sort(key=lambda item: item[0][:2])
    return tuple(manifest for _, manifest in ordered)


def _named(
    name: str, manifests: Iterable[_Versioned], error: type[NotFoundError], problems: Sequence[ManifestError]
) -> list[_Versioned]:
    manifests = list(manifests)
    named = [m for m in manifests if m.name.casefold() == name.strip().casefold()]
    if not named:
        message = str(error.of(name, (m.name for m in manifests)))
        if problems:
            message += f" ({len(problems)} manifests could not be read, the first: {problems[0]})"
        raise error(message)
    return named


def _of_version(
    manifests: list[_Versioned], version: str | None, error: type[NotFoundError]
) -> list[_Versioned]:
    """Returns the manifests that meet ``version``, the highest version first."""
    try:
        constraint = Constraint(version or "*")
    except InvalidConstraintError as invalid:
        raise ConfigurationError(f"version: {invalid}") from invalid
    fitting = [m for m in manifests if constraint.allows(m.version)]
    if not fitting:
        have = ", ".join(dict.fromkeys(m.version for m in manifests))
        raise error(f'{error.kind} "{manifests[0].name}" has no version {version}; it has: {have}')
    return sorted(fitting, key=lambda m: Version(m.version), reverse=True)
