"""Configurations of DLBS as plans: its names become those of ``agent bench``, what has no equal is listed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inferometer.evaluators.plans import dlbs_names as names
from inferometer.evaluators.plans.plan import plan_of
from inferometer.manifests.errors import ConfigurationError

_REFERENCE = re.compile(r"\$\{([^${}]+)\}")
_NESTED = re.compile(r"\$\{[^{}]*\$\{")
_OF_CONDITION = re.compile(r"__condition\.(?P<name>.+)_(?P<group>\d+)")
_PYTHON = re.compile(r"\$\(.*?\)\$", re.DOTALL)
_INSTEAD = "write the value, a reference ${NAME}, or an extension that gives a value for each condition"
_SHOWN_CHARACTERS = 120


@dataclass(frozen=True, slots=True)
class Imported:
    """A plan that was a configuration of DLBS.

    Attributes:
        plan: The plan, as its file has it.
        without_equal: What the plan lacks, each with its reason.
    """

    plan: dict[str, Any]
    without_equal: tuple[str, ...]


def import_dlbs(text: str, name: str) -> Imported:
    """Returns the plan of a configuration of DLBS.

    Conditions, cases and references keep their meaning: a parameter without an equal that one of them names
    stays as the plan's own. Defaults of DLBS that differ from those of ``agent bench`` are written down.

    Args:
        text: The configuration, in JSON, which has no comments in DLBS either.
        name: The name of the plan.

    Raises:
        ConfigurationError: It is no configuration of DLBS, or ``name`` no name of a plan.
    """
    return _Import(_parsed(text), name).imported()


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


class _Import:
    """One import: the parts of the configuration, and what the plan lacks of it."""

    def __init__(self, content: dict[str, Any], name: str) -> None:
        self._name = name
        self._parameters: dict[str, Any] = content["parameters"]
        self._variables: dict[str, list[Any]] = {
            variable: values if isinstance(values, list) else [values]
            for variable, values in content["variables"].items()
        }
        self._extensions: list[dict[str, Any]] = content["extensions"]
        self._lost: dict[str, str] = {}
        for section in content.keys() - {"parameters", "variables", "extensions"}:
            self._lost[section] = "DLBS passes over this section too"
        self._has_nested = False
        self._mentioned = set(self._mentions())
        self._add_defaults()
        self._set = {each for part in self._parts() for each in part}
        self._command = self._find_command()
        self._names = self._find_names()

    def imported(self) -> Imported:
        plan: dict[str, Any] = {
            "name": self._name,
            "description": "after a configuration of DLBS",
            "command": self._command,
            **self._settings(),
        }
        parameters = self._converted(self._parameters)
        variables = self._converted_variables()
        extensions = [
            *self._converted_extensions(),
            *self._of_frameworks(parameters),
            *self._without_docker(),
        ]
        if not self._set & {"exp.gpus", "exp.num_gpus", "exp.num_local_gpus", "exp.device_type"}:
            parameters["gpus"] = names.DEFAULTS["exp.gpus"]
        plan["parameters"], plan["variables"], plan["extensions"] = parameters, variables, extensions
        self._drop_unknown(plan)
        if names.STATUS in self._set:
            plan["constraints"] = [f"${{{names.STATUS}}} != disabled"]
        plan = {name: value for name, value in plan.items() if value or name == "parameters"}
        plan_of(plan, "DLBS's configuration")
        return Imported(plan, tuple(f"{name}: {reason}" for name, reason in self._lost.items()))

    def _parts(self) -> Iterator[Mapping[str, Any]]:
        """What sets parameters."""
        yield from (self._parameters, self._variables)
        for extension in self._extensions:
            yield from (extension["parameters"], *extension["cases"])

    def _mentions(self) -> Iterator[str]:
        """What conditions and references name."""
        for part in self._parts():
            for name, value in part.items():
                if names.why_no_equal(name) is None:
                    self._has_nested |= _NESTED.search(json.dumps(value)) is not None
                    for reference in _REFERENCE.findall(json.dumps(value)):
                        found = _OF_CONDITION.fullmatch(reference)
                        yield found["name"] if found else reference
        for extension in self._extensions:
            yield from extension["condition"]

    def _add_defaults(self) -> None:
        """Adds DLBS's values of what is named or changed: what a cell lacks would fit every condition."""
        present = {*self._parameters, *self._variables}
        needed = {*self._mentioned, *(each for part in self._parts() for each in part)}
        for name, value in names.DEFAULTS.items():
            if name in needed and name not in present:
                self._parameters[name] = value
                self._mentioned.update(_REFERENCE.findall(str(value)))

    def _find_command(self) -> str:
        """The command, by the phase; a plan has one."""
        phases = self._values_of(names.PHASE) or ["training"]
        if names.PHASE in self._variables:
            self._variables.pop(names.PHASE)
        first = str(phases[0])
        if first not in ("training", "inference"):
            raise ConfigurationError(
                f'DLBS\'s configuration: {names.PHASE}: unknown phase "{first}"; known: training, inference'
            )
        for phase in phases[1:]:
            self._lost[f"{names.PHASE}={phase}"] = (
                f"a plan has one command; copy it and write command: bench {phase}"
            )
        self._parameters = {**self._parameters}
        if names.PHASE in self._mentioned:
            self._parameters[names.PHASE] = first
        else:
            self._parameters.pop(names.PHASE, None)
        if any(_value(self._parameters.get(f"{each}.data_loader_only")) is True for each in names.FRAMEWORKS):
            return "bench ingestion"
        return f"bench {first}"

    def _values_of(self, name: str) -> list[Any]:
        """The values that a parameter has, beginning with those that come first."""
        found = list(self._variables.get(name, ()))
        if not found and name in self._parameters:
            found.append(_value(self._parameters[name]))
        for extension in self._extensions:
            for part in (extension["parameters"], *extension["cases"]):
                found += [_value(part[name])] if name in part else []
        return list(dict.fromkeys(each for each in found if not isinstance(each, list)))

    def _find_names(self) -> dict[str, str]:
        """Our names, without parameters none of whose values are here, and those that say the same."""
        found = {name: ours for name, ours in names.NAMES.items() if name in self._set}
        for name in list(found):
            values = self._values_of(name)
            if values and all(names.why_not(name, value) for value in values):
                for value in values:
                    self._lost[f"{name}={value}"] = names.why_not(name, value) or ""
                del found[name]
        same = ["exp.gpus", "exp.num_gpus", "exp.num_local_gpus"]
        given = [name for name in same if name in found]
        for name in given[1:]:
            self._lost[name] = f"{given[0]} says it"
            del found[name]
        return found

    def _settings(self) -> dict[str, Any]:
        """What belongs to the plan as a whole."""
        settings: dict[str, Any] = {}
        order = _value(self._parameters.pop(names.VAR_ORDER, []))
        if isinstance(order, list):
            settings["var_order"] = [self._named(str(each)) for each in order]
        rerun = _value(self._parameters.pop(names.RERUN, None))
        if rerun is not None:
            settings["rerun"] = rerun
        if names.TRIAL in self._variables and names.TRIAL not in self._mentioned:
            settings["repeat"] = len(self._variables.pop(names.TRIAL))
        return settings

    def _named(self, name: str) -> str:
        if name.startswith(names.RUNTIME_VARIABLE):
            return names.VARIABLE + name.removeprefix(names.RUNTIME_VARIABLE)
        return self._names.get(name, name)

    def _rewritten(self, value: Any) -> Any:
        """A value whose references have our names."""

        def ours(match: re.Match[str]) -> str:
            found = _OF_CONDITION.fullmatch(match[1])
            if found:
                return f"${{__condition.{self._named(found['name'])}_{found['group']}}}"
            return f"${{{self._named(match[1])}}}"

        if isinstance(value, list):
            return [self._rewritten(each) for each in value]
        return _REFERENCE.sub(ours, value) if isinstance(value, str) else value

    def _is_lost(self, name: str, value: Any) -> bool:
        """Whether a parameter is left out; says so."""
        reason = None if self._is_option(name) else names.why_no_equal(name)
        if name == "exp.num_nodes" and value == 1:
            return name not in self._mentioned
        if reason is not None:
            self._lost.setdefault(names.group_of(name), reason)
            if not self._is_mentioned(name):
                return True
        text = _python(value)
        if text:
            self._lost[name] = _refusal(text)
            return True
        if self._is_passed_over(name) and _REFERENCE.search(json.dumps(value)):
            self._lost[name] = "no option and no condition reads it, and it refers to other values"
            return True
        refused = names.why_not(name, value) if name in self._names else None
        if refused:
            self._lost[f"{name}={value}"] = refused
        return refused is not None

    def _is_option(self, name: str) -> bool:
        """Whether it is one of a framework that has an equal."""
        return any(name in names.options_of(each, self._command) for each in names.FRAMEWORKS)

    def _is_passed_over(self, name: str) -> bool:
        """Whether nothing reads it."""
        return self._named(name) == name and not self._is_option(name) and not self._is_mentioned(name)

    def _is_mentioned(self, name: str) -> bool:
        """Whether a condition or a reference names it; one with another inside may name any framework's."""
        of_framework = name.partition(".")[0] not in ("exp", "monitor", "runtime")
        return name in self._mentioned or (self._has_nested and of_framework)

    def _converted(self, given: Mapping[str, Any]) -> dict[str, Any]:
        converted: dict[str, Any] = {}
        for name, written in given.items():
            value = _value(written)
            if self._is_environment(name):
                if given is not self._parameters:
                    self._lost[name] = f"in an extension, set {names.VARIABLE}NAME there"
                continue
            if self._is_lost(name, value):
                continue
            if isinstance(written, dict):
                kept = {key: each for key, each in written.items() if key in ("type", "desc", "val_domain")}
                for key in written.keys() - kept.keys() - {"val"}:
                    self._lost[f"{name}.{key}"] = "a parameter has val, type, desc and val_domain"
                converted[self._named(name)] = {"val": self._rewritten(value), **kept}
            else:
                converted[self._named(name)] = self._rewritten(value)
        return converted

    def _is_environment(self, name: str) -> bool:
        return name in [f"{each}.env" for each in names.FRAMEWORKS]

    def _converted_variables(self) -> dict[str, Any]:
        converted = {}
        for name, values in self._variables.items():
            kept = [self._rewritten(each) for each in values if not self._is_lost(name, each)]
            if not kept:
                continue
            ours = self._named(name)
            if (
                ours == name
                and not self._is_option(name)
                and name not in self._mentioned
                and name != names.STATUS
            ):
                self._lost.setdefault(name, "it changes no option, so that its values make one cell")
            converted[ours] = kept
        return converted

    def _converted_extensions(self) -> Iterator[dict[str, Any]]:
        for number, extension in enumerate(self._extensions):
            condition = {self._named(name): value for name, value in extension["condition"].items()}
            python = [name for name in extension["condition"] if _python(_value(self._parameters.get(name)))]
            if python:
                self._lost[f"extensions.{number}"] = f"its condition takes {python[0]}, which is Python"
                continue
            parameters = self._converted(_without_phase(extension["parameters"]))
            cases = [self._converted(_without_phase(case)) for case in extension["cases"]]
            if parameters or any(cases):
                written = {"condition": condition, "parameters": parameters, "cases": cases}
                yield {name: value for name, value in written.items() if value}

    def _of_frameworks(self, parameters: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """An extension for each framework, that gives its cells the options that only it has."""
        if names.FRAMEWORK not in self._names:
            return
        for framework in names.FRAMEWORKS:
            given: dict[str, Any] = {}
            for name, option in names.options_of(framework, self._command).items():
                general = [each for each, ours in names.NAMES.items() if ours == option]
                if name not in self._set or any(each in self._set for each in general):
                    continue
                if name not in self._variables:
                    parameters.setdefault(name, None)
                    if parameters[name] == "":
                        continue  # nothing, as DLBS writes it
                given[option] = f"${{{name}}}"
            given |= self._environment(framework)
            if given:
                yield {"condition": {self._named(names.FRAMEWORK): [framework]}, "parameters": given}

    def _environment(self, framework: str) -> dict[str, Any]:
        """The environment variables of a framework, which DLBS writes as NAME=VALUE."""
        name = f"{framework}.env"
        written = _value(self._parameters.get(name, []))
        found = {}
        for each in written.split() if isinstance(written, str) else written:
            variable, equals, value = str(each).partition("=")
            if _python(each):
                self._lost[f"{name} {variable}"] = (
                    f'"{_python(each)}" is Python, which a plan does not run; {_INSTEAD}'
                )
            elif not equals or re.search(r"\$\w", value):
                self._lost[f"{name} {variable}"] = f"a shell would read it; set {names.VARIABLE}NAME"
            else:
                found[names.VARIABLE + variable] = self._rewritten(value)
        return found

    def _without_docker(self) -> Sequence[dict[str, Any]]:
        """The extension that takes the container from cells that DLBS runs without one."""
        if False not in self._values_of(names.DOCKER):
            return []
        return [{"condition": {names.DOCKER: False}, "parameters": {names.CONTAINER: None}}]

    def _drop_unknown(self, plan: dict[str, Any]) -> None:
        """Leaves out what refers to what is not there, and then what refers to that."""
        parts = [plan["parameters"], plan["variables"]]
        for extension in plan["extensions"]:
            parts += [extension.get("parameters", {}), *extension.get("cases", [])]
        dropped = True
        while dropped:
            known = {name for part in parts for name in part}
            found = [
                (part, name, reference)
                for part in parts
                for name, value in part.items()
                for reference in _REFERENCE.findall(json.dumps(_value(value)))
                if "." in reference and reference not in known and not reference.startswith("__condition.")
            ]
            dropped = bool(found)
            for part, name, reference in found:
                part.pop(name, None)
                self._lost[name] = f"it refers to {reference}, which the plan lacks; write its value"


def _without_phase(part: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: value for name, value in part.items() if name != names.PHASE}


def _value(written: Any) -> Any:
    """The value of a parameter, which may be written with its type and description."""
    return written.get("val") if isinstance(written, dict) else written


def _refusal(text: str) -> str:
    return f'"{text}" is Python, which a plan does not run; {_INSTEAD}'


def _python(value: Any) -> str:
    """The first expression in a value that is Python, cut to what a message takes."""
    for text in value if isinstance(value, list) else [value]:
        found = _PYTHON.search(text) if isinstance(text, str) else None
        if found:
            whole = found[0]
            return whole if len(whole) <= _SHOWN_CHARACTERS else whole[:_SHOWN_CHARACTERS] + "…"
    return ""
