"""One invocation of the command line, or one call of the library: its flags, configuration and components.

Global flags also set log levels; each warning from a library is formatted as one line.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from inferometer.agent.hardware.allocator import use_allocator_of_environment
from inferometer.client.api.directories import configuration_path, directory
from inferometer.manifests.errors import ConfigurationError, explained, one_line, printable

if TYPE_CHECKING:
    from inferometer.agent.architectures.sources import Architectures
    from inferometer.agent.artifacts.files import ArtifactCache
    from inferometer.agent.inference.model_listing import ModelListing
    from inferometer.agent.inference.registry import Registry
    from inferometer.client.api.configuration import Configuration
    from inferometer.client.api.waiting import WaitingLine
    from inferometer.client.remote.connection import ClientTls
    from inferometer.evaluators.store.evaluation_store import EvaluationStore
    from inferometer.manifests.catalog import Catalog


def quieten_libraries() -> None:
    """Formats each library warning as one line, and suppresses redundant warnings."""
    # on one line, without the source line of the library
    warnings.formatwarning = lambda message, *_, **__: f"warning: {printable(one_line(str(message)))}\n"
    # Pillow's own limit, which is below --max_pixels
    warnings.filterwarnings("ignore", r"Image size .* could be decompression bomb")
    # gRPC would log each failed handshake in addition to the one-line error.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    # PyTorch would log that memory allocated before a trace was freed during it.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def set_logging(flags: Mapping[str, Any]) -> None:
    """Sets the log level that the global flags select."""
    import logging

    level = logging.DEBUG if flags.get("debug") else logging.INFO if flags.get("verbose") else logging.WARNING
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    # Library loggers are unchanged: Pillow, for example, logs several lines per image within timed regions.
    logging.getLogger("inferometer").setLevel(level)


DEFAULT_DATABASE = "inferometer"
ON_COMMAND_LINE = "on_command_line"
"""The key for the names of the global flags that were set on the command line, not by the environment."""
INVOCATION = "invocation"
"""The key under which a command's flags hold its ``Invocation``, which is not pickled with them."""
_MAX_BYTES = 4096
_BYTES_PER_GIB = 1024**3


def read_secret(path: Path) -> str:
    """Returns the secret, the single line of a secret file.

    Raises:
        ConfigurationError: The file cannot be read, or is not one line of text. The message does not contain
            the secret.
    """
    with explained(ConfigurationError, f"secret file {path}"), path.open("rb") as file:
        content = file.read(_MAX_BYTES + 1)
    try:
        lines = content.decode("ascii").splitlines()
    except UnicodeDecodeError:
        lines = []
    if len(content) > _MAX_BYTES or len(lines) != 1 or not lines[0]:
        raise ConfigurationError(f"secret file {path}: is not a single line of printable ASCII characters")
    return lines[0]


_echo_error = partial(click.echo, err=True)


@dataclass(frozen=True)
class Invocation:
    """The global flags, and the components built from them. Each component is created on first use.

    ``notify`` is called with each one-line message to the user.
    """

    flags: Mapping[str, Any] = field(repr=False)
    notify: Callable[[str], None] = _echo_error

    def __reduce__(self) -> tuple[Callable[[Mapping[str, Any]], Invocation], tuple[Mapping[str, Any]]]:
        """Pickles only the flags; see ``resumed_invocation``."""
        return resumed_invocation, ({name: each for name, each in self.flags.items() if name != INVOCATION},)

    @cached_property
    def configuration(self) -> Configuration:
        """The configuration."""
        from inferometer.client.api.configuration import load_configuration

        return load_configuration(self._configuration_path)

    @cached_property
    def _configuration_path(self) -> Path | None:
        return configuration_path(self.flags.get("config"), self.notify)

    @property
    def is_configured(self) -> bool:
        """Whether a configuration file exists; if not, the defaults apply and nothing needs to be loaded."""
        return self._configuration_path is not None

    @property
    def manifest_directories(self) -> tuple[Path, ...]:
        """The user's manifest directories: first those from flags, then those from the configuration."""
        named = tuple(Path(directory) for directory in self.flags.get("manifests", ()))
        return (*named, *self.configuration.manifests) if self.is_configured else named

    @cached_property
    def cache_directory(self) -> Path:
        """The directory of downloaded files."""
        return directory("cache", self.configuration.cache_dir if self.is_configured else None, self.notify)

    @cached_property
    def data_directory(self) -> Path:
        """The directory of evaluations and of results that could not be published."""
        return directory("data", self.configuration.data_dir if self.is_configured else None, self.notify)

    @cached_property
    def catalog(self) -> Catalog:
        """The built-in manifests, and those in the directories that the flags and the configuration name.

        An invalid manifest is reported and skipped.
        """
        from inferometer.manifests.catalog import Catalog

        places = self.configuration.datasets if self.is_configured else {}
        catalog = Catalog(self.manifest_directories, places)
        for problem in catalog.problems:
            self.notify(f"warning: left out {problem}")
        return catalog

    @cached_property
    def listing(self) -> ModelListing:
        """A listing of the models and of the names of datasets; it loads faster than the catalogue."""
        from inferometer.agent.inference.model_listing import list_models

        return list_models(self.manifest_directories, self.cache_directory)

    @cached_property
    def cache(self) -> ArtifactCache:
        """The download cache; it shows a progress bar on stderr for each download."""
        from inferometer.agent.artifacts.downloads import Downloader, DownloadLimits, UnpackLimits
        from inferometer.agent.artifacts.files import ArtifactCache
        from inferometer.client.api.waiting import DownloadBar

        configuration = self.configuration
        most_bytes = int(configuration.max_download_gib * _BYTES_PER_GIB)
        downloader = Downloader(DownloadLimits(max_bytes=most_bytes), DownloadBar(self.waiting))
        return ArtifactCache(self.cache_directory, downloader, UnpackLimits(max_bytes=most_bytes))

    @cached_property
    def waiting(self) -> WaitingLine:
        """The line that shows the current activity."""
        from inferometer.client.api.waiting import WaitingLine

        return WaitingLine(wanted=not (self.flags.get("verbose") or self.flags.get("debug")))

    @cached_property
    def architectures(self) -> Architectures:
        """The architectures that manifests of code-defined models can name.

        Raises:
            ConfigurationError: A directory that the environment or the configuration names does not exist.
        """
        from inferometer.agent.architectures.sources import Architectures

        return Architectures(self.configuration.architecture_directories)

    @cached_property
    def registry(self) -> Registry:
        """The registry of frameworks."""
        from inferometer.agent.inference.registry import Registry

        return Registry.discover()

    @cached_property
    def secret(self) -> str | None:
        """The secret of served agents, from the flag, the environment or a file.

        A file on the command line takes precedence over a secret in the environment.

        Raises:
            ConfigurationError: The file cannot be read, or is not one line of text.
        """
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
        """The client's TLS settings for served agents; None if neither flags nor configuration set any.

        Raises:
            ConfigurationError: A certificate is given without its key, or a key without its certificate.
        """
        given = (self.flags.get(name) for name in ("tls_ca", "tls_cert", "tls_key"))
        authorities, certificate, key = (None if path is None else Path(path) for path in given)
        server_name = self.flags.get("tls_server_name")
        if self.is_configured:
            configured = self.configuration.agent_tls
            if certificate is None and key is None:  # a certificate and its key come from the same source
                certificate, key = configured.cert, configured.key
            authorities = authorities or configured.ca
            server_name = server_name or configured.server_name
        if not (authorities or certificate or key or server_name):
            return None
        # imports gRPC, which most commands do not need
        from inferometer.client.remote.connection import ClientTls

        return ClientTls(authorities, certificate, key, server_name)

    @property
    def local(self) -> bool:
        """Whether servers listen only on the loopback address."""
        return bool(self.flags.get("local"))

    @property
    def database(self) -> tuple[str | None, str]:
        """The address and the name of the database; without an address, it is a local file.

        An empty environment variable for the address overrides the configuration and selects the local file.
        """
        settings = self.configuration.database
        name = self.flags.get("database_name") or settings.name or DEFAULT_DATABASE
        configured = None if os.environ.get(VARIABLES["database_address"]) == "" else settings.address
        return self.flags.get("database_address") or configured, name

    @property
    def has_store(self) -> bool:
        """Whether the database is a server, or a local file that exists."""
        from inferometer.evaluators.store.opening import local_file

        address, name = self.database
        return address is not None or local_file(name, self.data_directory).exists()

    def open_store(self) -> EvaluationStore:
        """Opens the database that the options or the configuration name."""
        from inferometer.evaluators.store.opening import open_store

        return open_store(*self.database, self.data_directory)


def resumed_invocation(flags: Mapping[str, Any]) -> Invocation:
    """Continues an invocation in another process, with its format of logs and warnings.

    Messages to the user are dropped, because the first process has already printed them.
    """
    quieten_libraries()
    set_logging(flags)
    return Invocation(flags, notify=lambda _: None)


VARIABLES: Mapping[str, str] = {
    "secret": "AGENT_SECRET",
    "secret_file": "AGENT_SECRET_FILE",
    "database_address": "AGENT_DATABASE_ADDRESS",
    "tls_ca": "AGENT_TLS_CA",
    "tls_cert": "AGENT_TLS_CERT",
    "tls_key": "AGENT_TLS_KEY",
    "tls_server_name": "AGENT_TLS_SERVER_NAME",
}
"""The environment variables of global flags, by flag; those for folders are read where they are needed."""
FRAMEWORK = "AGENT_FRAMEWORK"
"""The environment variable that names the default framework."""
MANIFESTS = "AGENT_MANIFESTS"
"""The environment variable that names the user's manifest directories."""


def library_invocation(**flags: Any) -> Invocation:
    """Returns an invocation with the settings of the environment; ``flags`` that are not None override them.

    Also sets the process's allocator to the one that the environment names.
    """
    use_allocator_of_environment()
    found: dict[str, Any] = {name: os.environ[key] for name, key in VARIABLES.items() if os.environ.get(key)}
    if directories := os.environ.get(MANIFESTS):
        found["manifests"] = directories.split(os.pathsep)
    return Invocation(found | {name: value for name, value in flags.items() if value is not None})
