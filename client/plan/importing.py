"""``agent plan import-dlbs``: converts a DLBS configuration to a plan."""

from __future__ import annotations

import os
import re
from pathlib import Path

import click
import yaml

from inferometer.client.cli.output import say
from inferometer.evaluators.plans.dlbs import import_dlbs
from inferometer.manifests.errors import ConfigurationError, OutputError

_MOST_BYTES = 16 * 1024 * 1024


def write_imported(path: Path, output: Path | None) -> None:
    """Writes the plan that corresponds to a configuration, and reports what has no equivalent.

    Raises:
        ConfigurationError: The file cannot be read, or is not a DLBS configuration.
        OutputError: The plan cannot be written, or its file exists.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ConfigurationError(f"{path}: larger than {_MOST_BYTES} bytes, which no configuration is")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}: is no text in UTF-8") from error
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem).strip("-._") or "dlbs"
    found = import_dlbs(text, name, os.environ)
    written = yaml.safe_dump(found.plan, sort_keys=False, allow_unicode=True, width=100)
    if output is None:
        click.echo(written, nl=False)
    else:
        try:
            with output.open("x", encoding="utf-8") as file:
                file.write(written)
        except OSError as error:
            raise OutputError(f"{output}: cannot be written: {error.strerror or error}") from error
    for line in found.without_equal:
        say(f"no equal    {line}")
