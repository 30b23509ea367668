"""The file of a configuration of DLBS, in JSON: its sections, checked, under the names that DLBS 0.4 has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from inferometer.evaluators.plans import dlbs_names as names
from inferometer.manifests.errors import ConfigurationError


def read_configuration(text: str) -> dict[str, Any]:
    """Returns the parameters, variables and extensions of a configuration.

    Where nothing sets ``exp.framework``, another parameter that tells the framework becomes it.

    Raises:
        ConfigurationError: It is no configuration of DLBS.
    """
    content = _parsed(text)
    given = {
        name
        for part in setting_parts(content["parameters"], content["variables"], content["extensions"])
        for name in part
    }
    others = [each for each in names.FRAMEWORK_TOO if each in given]
    if names.FRAMEWORK in given or not others:
        return content
    return _parsed(re.sub(rf"{re.escape(others[0])}(?![a-z])", names.FRAMEWORK, text))


def setting_parts(
    parameters: Mapping[str, Any], variables: Mapping[str, Any], extensions: Sequence[Mapping[str, Any]]
) -> Iterator[Mapping[str, Any]]:
    """Yields what sets parameters."""
    yield from (parameters, variables)
    for extension in extensions:
        yield from (extension["parameters"], *extension["cases"])


def _parsed(text: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"DLBS's configuration: cannot be read as JSON: {error}") from error
    kinds = {
        "parameters": (dict, "an object"),
        "variables": (dict, "an object"),
        "extensions": (list, "a list"),
    }
    if not isinstance(content, dict) or not kinds.keys() & content.keys():
        raise ConfigurationError(
            "DLBS's configuration: has neither parameters nor variables nor extensions; give what DLBS "
            "reads, not the experiments that it builds"
        )
    for section, (kind, called) in kinds.items():
        if not isinstance(content.setdefault(section, kind()), kind):
            raise ConfigurationError(f"DLBS's configuration: {section}: is not {called}")
    for name, written in content["parameters"].items():
        if isinstance(written, dict) and "val" not in written:
            raise ConfigurationError(f"DLBS's configuration: parameters.{name}: has no val")
    for number, extension in enumerate(content["extensions"]):
        where = f"DLBS's configuration: extensions.{number}"
        if not isinstance(extension, dict):
            raise ConfigurationError(f"{where}: is not an object")
        for part, kind in {"condition": dict, "parameters": dict, "cases": list}.items():
            if not isinstance(extension.setdefault(part, kind()), kind):
                raise ConfigurationError(
                    f"{where}.{part}: is not {'a list' if kind is list else 'an object'}"
                )
        if not all(isinstance(case, dict) for case in extension["cases"]):
            raise ConfigurationError(f"{where}.cases: has what is not an object")
    return content
