"""``agent download``: fills the cache, so that models and datasets open without a network."""

from __future__ import annotations

import click

from client.command import Command, Group, boolean


@click.group(cls=Group)
def download() -> None:
    """Download the files of models and datasets into the cache, so that they open without a network."""


@download.command(cls=Command)
@click.option("--model_name", metavar="NAME", help="Model.")
@click.option("--model_version", metavar="VERSION", help="Version or constraint.  [default: all]")
@click.option("--framework_name", metavar="NAME", help="Framework.  [default: all, installed or not]")
@boolean("--all", "every", help="Every model that is not hidden.")
def models(model_name: str | None, model_version: str | None, framework_name: str | None, every: bool) -> int:
    """Download graphs, weights and labels, and check them; a line says of each file where it is.

    What fails is said on stderr, and does not keep the other files from being downloaded.
    """
    from client.cache_filling import CacheFilling
    from client.invocation import current_invocation
    from manifests.errors import ConfigurationError, UnknownModelError

    if every == (model_name is not None) or (every and model_version is not None):
        raise ConfigurationError("give --model_name, also with --model_version; or --all")
    invocation = current_invocation()
    catalog = invocation.catalog
    found = catalog.models if model_name is None else catalog.find_models(model_name, model_version)
    if framework_name is not None:
        framework = invocation.registry.find(framework_name).name.casefold()
        fitting = tuple(m for m in found if m.framework.name.casefold() == framework)
        if not fitting and found:
            have = ", ".join(sorted({m.framework.name for m in found}))
            raise UnknownModelError(f"no manifest is for {framework_name}; there are some for: {have}")
        found = fitting
    return CacheFilling(invocation.cache).fill_models(found)


@download.command(cls=Command)
@click.option("--dataset_name", required=True, metavar="NAME", help="Dataset.")
@click.option("--dataset_category", metavar="NAME", help="Category of the dataset.  [default: any]")
def dataset(dataset_name: str, dataset_category: str | None) -> int:
    """Download a dataset, and check it."""
    from client.cache_filling import CacheFilling
    from client.invocation import current_invocation

    invocation = current_invocation()
    manifest = invocation.catalog.find_dataset(dataset_name, category=dataset_category)
    return CacheFilling(invocation.cache).fill_dataset(manifest)
