"""One call of the command line: its global flags and configuration, and the parts that they choose."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import click

from agent.registry import Registry
from client.configuration import Configuration, load_configuration
from evaluators.store.base import EvaluationStore
from manifests.catalog import Catalog

DEFAULT_DATABASE = "inferscope"
_PACKAGES = ("agent", "client", "evaluators", "manifests")


@dataclass(frozen=True)
class Invocation:
    """The global flags, and what follows from them.

    Attributes:
        flags: The global flags that were given, by name.
    """

    flags: Mapping[str, Any]

    @cached_property
    def configuration(self) -> Configuration:
        """The configuration, read when first asked for."""
        named = self.flags.get("config")
        return load_configuration(Path(named) if named else None)

    @property
    def data_directory(self) -> Path:
        """Where the program keeps its data."""
        return self.configuration.data_directory

    @cached_property
    def catalog(self) -> Catalog:
        """Every manifest: of the directories that the flags and the configuration name, and the program's.

        A file in them that is no valid manifest is said on stderr, and left out.
        """
        named = [Path(directory) for directory in self.flags.get("manifests", ())]
        catalog = Catalog((*named, *self.configuration.manifests))
        for problem in catalog.problems:
            click.echo(f"warning: left out {problem}", err=True)
        return catalog

    @cached_property
    def registry(self) -> Registry:
        """The frameworks."""
        return Registry.discover()

    @property
    def secret(self) -> str | None:
        """The secret that a served agent asks for."""
        secret: str | None = self.flags.get("secret")
        return secret

    @property
    def local(self) -> bool:
        """Whether a server may listen on the local address only."""
        return bool(self.flags.get("local"))

    def open_store(self, address: str | None, name: str | None) -> EvaluationStore:
        """Opens the database that the flags, or else the configuration, name.

        Raises:
            StoreError: It cannot be reached.
        """
        from evaluators.store.opening import open_store

        settings = self.configuration.database
        return open_store(
            address or settings.address, name or settings.name or DEFAULT_DATABASE, self.data_directory
        )


def current_invocation() -> Invocation:
    """The invocation of the command that is running; logging follows its flags.

    Must be called from within a command.
    """
    flags: Mapping[str, Any] = click.get_current_context().obj or {}
    level = logging.DEBUG if flags.get("debug") else logging.INFO if flags.get("verbose") else logging.WARNING
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    # Not the libraries': Pillow, for one, says several things of each image, while it is being timed.
    for package in _PACKAGES:
        logging.getLogger(package).setLevel(level)
    return Invocation(flags)
