"""The secret of a served agent in a file, as Docker, Kubernetes and systemd hand secrets to a program."""

from __future__ import annotations

from pathlib import Path

from manifests.errors import ConfigurationError

_MAX_BYTES = 4096


def read_secret(path: Path) -> str:
    """Returns what a file holds, without the end of its line.

    Raises:
        ConfigurationError: It cannot be read, or is no single line of text. The message keeps the secret.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(f"secret file {path}: {error.strerror or error}") from error
    try:
        lines = content.decode("ascii").splitlines()
    except UnicodeDecodeError:
        lines = []
    if len(content) > _MAX_BYTES or len(lines) != 1 or not lines[0]:
        raise ConfigurationError(f"secret file {path}: holds no single line of printable ASCII characters")
    return lines[0]
