"""One call of the command line: its global flags and configuration, and the parts that they choose."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from client.global_flags import ON_COMMAND_LINE
from client.places import cache_directory, configuration_path

if TYPE_CHECKING:  # each is imported when it is asked for: most commands need few of them
    from agent.artifact_cache import ArtifactCache
    from agent.models.sources import Architectures
    from agent.registry import Registry
    from client.configuration import Configuration
    from client.remote.tls import ClientTls
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

    flags: Mapping[str, Any] = field(repr=False)

    @cached_property
    def configuration(self) -> Configuration:
        """The configuration, read when first asked for."""
        from client.configuration import load_configuration

        named = self.flags.get("config")
        return load_configuration(Path(named) if named else None)

    @property
    def is_configured(self) -> bool:
        """Whether there is a configuration file; without one its defaults hold, and need not be loaded."""
        return configuration_path(self.flags.get("config")) is not None

    @property
    def manifest_directories(self) -> tuple[Path, ...]:
        """The user's directories with manifests: first those that flags name, then the configuration's."""
        named = tuple(Path(directory) for directory in self.flags.get("manifests", ()))
        return (*named, *self.configuration.manifests) if self.is_configured else named

    @property
    def cache_directory(self) -> Path:
        """Where what was downloaded is kept."""
        return self.configuration.cache_directory if self.is_configured else cache_directory()

    @property
    def data_directory(self) -> Path:
        """Where the program keeps its data."""
        return self.configuration.data_directory

    @cached_property
    def catalog(self) -> Catalog:
        """Every manifest: of the directories that the flags and the configuration name, and the program's.

        A file in them that is no valid manifest is said on stderr, and left out.
        """
        from manifests.catalog import Catalog

        catalog = Catalog(self.manifest_directories)
        for problem in catalog.problems:
            click.echo(f"warning: left out {problem}", err=True)
        return catalog

    @cached_property
    def cache(self) -> ArtifactCache:
        """What was downloaded; more is downloaded into it, with a bar on stderr that shows how far it is."""
        from agent.archives import UnpackLimits
        from agent.artifact_cache import ArtifactCache
        from agent.downloading import Downloader, DownloadLimits
        from client.download_bar import DownloadBar

        configuration = self.configuration
        most_bytes = configuration.max_download_bytes
        downloader = Downloader(DownloadLimits(max_bytes=most_bytes), DownloadBar())
        return ArtifactCache(self.cache_directory, downloader, UnpackLimits(max_bytes=most_bytes))

    @cached_property
    def architectures(self) -> Architectures:
        """What models that are built in code may name.

        Raises:
            ConfigurationError: A directory that the environment or the configuration names is not there.
        """
        from agent.models.sources import Architectures

        return Architectures(self.configuration.architecture_directories)

    @cached_property
    def registry(self) -> Registry:
        """The frameworks."""
        from agent.registry import Registry

        return Registry.discover()

    @cached_property
    def secret(self) -> str | None:
        """The secret that a served agent asks for: the one that was given, or else that of the file.

        A file that is named on the command line goes before a secret of the environment.

        Raises:
            ConfigurationError: The file cannot be read, or holds no text.
        """
        from client.secret_file import read_secret

        secret: str | None = self.flags.get("secret")
        file: str | None = self.flags.get("secret_file")
        given = self.flags.get(ON_COMMAND_LINE, ())
        if file and (secret is None or ("secret_file" in given and "secret" not in given)):
            return read_secret(Path(file))
        if secret is None and self.is_configured and (configured := self.configuration.secret_file):
            return read_secret(configured)
        return secret

    @cached_property
    def agent_tls(self) -> ClientTls | None:
        """How served agents are spoken to over TLS; None where nothing is said of it.

        Raises:
            ConfigurationError: A certificate is given without its key, or a key without its certificate.
        """
        from client.agent_tls import read_agent_tls
        from client.safety_settings import AgentTlsSettings

        configured = self.configuration.agent_tls if self.is_configured else AgentTlsSettings()
        return read_agent_tls(self.flags, configured)

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
