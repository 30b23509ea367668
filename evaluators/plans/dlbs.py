"""Configurations of DLBS as plans: its names become those of ``agent bench``, what has no equal is listed."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inferometer.evaluators.plans import dlbs_names as names
from inferometer.evaluators.plans.cells import Cell, cells_of
from inferometer.evaluators.plans.dlbs_file import read_configuration, setting_parts
from inferometer.evaluators.plans.plan import plan_of
from inferometer.evaluators.plans.references import shown
from inferometer.manifests.errors import ConfigurationError

_REFERENCE = re.compile(r"\$\{([^${}]+)\}")
_NESTED = re.compile(r"\$\{[^{}]*\$\{")
_OF_FRAMEWORK = re.compile(rf"\$\{{\$\{{({re.escape(names.FRAMEWORK)}(?:_family)?)\}}\.([^${{}}]+)\}}")
_OF_CONDITION = re.compile(r"__condition\.(?P<name>.+)_(?P<group>\d+)")
_PYTHON = re.compile(r"\$\(.*?\)\$", re.DOTALL)
_INSTEAD = "write the value, a reference ${NAME}, or an extension that gives a value for each condition"
_SHOWN_CHARACTERS = 120
_WHERE = "DLBS's configuration"


@dataclass(frozen=True, slots=True)
class Imported:
    """A plan that was a configuration of DLBS.

    Attributes:
        plan: The plan, as its file has it.
        without_equal: What the plan lacks, each with its reason.
    """

    plan: dict[str, Any]
    without_equal: tuple[str, ...]


def import_dlbs(text: str, name: str, environment: Mapping[str, str] | None = None) -> Imported:
    """Returns the plan of a configuration of DLBS.

    Conditions, cases and references keep their meaning: a parameter without an equal that one of them names
    stays as the plan's own. Defaults of DLBS that differ from those of ``agent bench`` are written down.
    Constraints leave out the cells whose framework, precision or phase has no equal. The plan expands: what
    refers to what neither it nor the environment has is left out.

    Args:
        text: The configuration, in JSON, which has no comments in DLBS either.
        name: The name of the plan.
        environment: What references may name beside parameters.

    Raises:
        ConfigurationError: It is no configuration of DLBS, a name in it has a typing error, no cell of it can
            run here, or ``name`` is no name of a plan.
    """
    content = read_configuration(text)
    return _Import(content, name, environment or {}).imported()


class _Import:
    """One import: the parts of the configuration, and what the plan lacks of it."""

    def __init__(self, content: dict[str, Any], name: str, environment: Mapping[str, str]) -> None:
        self._name = name
        self._environment_variables = environment
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
        self._mentioned = self._find_mentioned()
        self._add_defaults()
        self._set = {each for part in self._parts() for each in part}
        self._check_names()
        self._phases = [str(each) for each in self._values_of(names.PHASE)] or ["training"]
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
        self._complete_nested(parameters)
        self._drop_unknown(plan)
        if names.STATUS in self._set:
            plan["constraints"] = [f"${{{names.STATUS}}} != disabled"]
        plan = {name: value for name, value in plan.items() if value or name == "parameters"}
        self._leave_out(plan)
        return Imported(plan, tuple(f"{name}: {reason}" for name, reason in self._lost.items()))

    def _leave_out(self, plan: dict[str, Any]) -> None:
        """Adds the constraints that leave out the cells which have no equal, and counts those.

        Raises:
            ConfigurationError: The plan has no cells then, or cannot be expanded.
        """
        constraints = list(plan.get("constraints", ()))
        for phase in self._phases[1:]:  # an option it is not: equal cells of two phases have one id
            count = len(self._cells(plan, [*constraints, f"${{{names.PHASE}}} == {phase}"]))
            self._lost[f"{names.PHASE}={phase}"] = (
                f"{count} cells are left out: a plan has one command; import the configuration with "
                "this phase alone too"
            )
        constraints += [f"${{{names.PHASE}}} != {phase}" for phase in self._phases[1:]]
        cells = self._cells(plan, constraints)
        counts: Counter[tuple[str, str, str]] = Counter()
        for cell in cells:
            values = [(name, shown(cell.parameters.get(self._named(name)))) for name in names.DECIDING]
            refused = [(*each, reason) for each in values if (reason := names.why_not(*each))]
            counts.update(refused[:1])
        if cells and counts.total() == len(cells):
            reasons = "; ".join(f"{name}={value}: {reason}" for name, value, reason in counts)
            raise ConfigurationError(f"{_WHERE}: none of its {len(cells)} cells has an equal here: {reasons}")
        for (name, value, reason), count in counts.items():
            self._lost[f"{name}={value}"] = f"{count} of {len(cells)} cells are left out: {reason}"
            plan["parameters"].setdefault(self._named(name), None)
            constraints.append(f"${{{self._named(name)}}} != {value}")
        plan |= {"constraints": constraints} if constraints else {}
        self._cells(plan, constraints)

    def _cells(self, plan: Mapping[str, Any], constraints: Sequence[str]) -> Sequence[Cell]:
        try:
            found = plan_of({**plan, "constraints": constraints}, "plan")
            return cells_of(found, environment=self._environment_variables)
        except ConfigurationError as error:
            raise ConfigurationError(f"{_WHERE}: {str(error).removeprefix('plan: ')}") from error

    def _parts(self) -> Iterator[Mapping[str, Any]]:
        return setting_parts(self._parameters, self._variables, self._extensions)

    def _find_mentioned(self) -> set[str]:
        """What conditions name, and references of values that are read."""
        read = [name for part in self._parts() for name in part if names.is_read(name)]
        read += [name for extension in self._extensions for name in extension["condition"]]
        mentioned = {name for extension in self._extensions for name in extension["condition"]}
        while read:
            name = read.pop()
            for written in (json.dumps(part[name]) for part in self._parts() if name in part):
                self._has_nested |= _NESTED.search(written) is not None
                for reference in _REFERENCE.findall(written):
                    found = _OF_CONDITION.fullmatch(reference)
                    new = {found["name"] if found else reference} - mentioned
                    mentioned |= new
                    read += new
        return mentioned

    def _check_names(self) -> None:
        """Refuses a name with a typing error, and says which names nothing reads.

        Raises:
            ConfigurationError: A name differs from one of DLBS in one character, and is only set, or only
                named.
        """
        for name in sorted(self._set | self._mentioned):
            if name in self._set and name in self._mentioned:
                continue
            nearest = names.typing_error(name)
            if nearest:
                raise ConfigurationError(
                    f'DLBS\'s configuration: unknown parameter "{name}"; did you mean "{nearest}"?'
                )
            if name in self._set and not names.is_known(name):
                self._lost[name] = "DLBS has no such parameter, and nothing refers to it"

    def _add_defaults(self) -> None:
        """Adds DLBS's values of what is named or changed: what a cell lacks would fit every condition."""
        present = {*self._parameters, *self._variables}
        needed = {*self._mentioned, *(each for part in self._parts() for each in part)}
        for name, value in names.DEFAULTS.items():
            if name in needed and name not in present:
                self._parameters[name] = value
                self._mentioned.update(_REFERENCE.findall(str(value)))

    def _find_command(self) -> str:
        """The command, by the first phase; a plan has one, and cells of another phase are left out."""
        first = self._phases[0]
        if first not in ("training", "inference"):
            raise ConfigurationError(
                f'DLBS\'s configuration: {names.PHASE}: unknown phase "{first}"; known: training, inference'
            )
        if len(self._phases) == 1 and names.PHASE not in self._mentioned:
            for part in (self._parameters, self._variables):
                part.pop(names.PHASE, None)
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
        """Our names, without those of parameters that say the same as others."""
        found = {name: ours for name, ours in names.NAMES.items() if name in self._set}
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
            self._lose(name, _refusal(text))
            return True
        if self._is_passed_over(name) and _REFERENCE.search(json.dumps(value)):
            self._lost[name] = "no option and no condition reads it, and it refers to other values"
            return True
        return False

    def _lose(self, name: str, reason: str) -> None:
        """Notes that a parameter is left out.

        Raises:
            ConfigurationError: It is the framework, without which cells would run in the default one.
        """
        if name in (names.FRAMEWORK, self._named(names.FRAMEWORK)):
            raise ConfigurationError(f"DLBS's configuration: {names.FRAMEWORK}: {reason}")
        self._lost[name] = reason

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
                and name not in (names.STATUS, names.PHASE)
            ):
                self._lost[name] = "it changes no option, so that its values make one cell"
            converted[ours] = kept
        return converted

    def _converted_extensions(self) -> Iterator[dict[str, Any]]:
        for number, extension in enumerate(self._extensions):
            condition = {self._named(name): value for name, value in extension["condition"].items()}
            python = [name for name in extension["condition"] if _python(_value(self._parameters.get(name)))]
            if python:
                self._lost[f"extensions.{number}"] = f"its condition takes {python[0]}, which is Python"
                continue
            parameters = self._converted(extension["parameters"])
            cases = [self._converted(case) for case in extension["cases"]]
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
                written = [str(each) for each in self._values_of(names.FRAMEWORK)]
                same = [each for each in written if each.casefold() == framework] or [framework]
                yield {"condition": {self._named(names.FRAMEWORK): same}, "parameters": given}

    def _environment(self, framework: str) -> dict[str, Any]:
        """The environment variables of a framework, which DLBS writes as NAME=VALUE."""
        name = f"{framework}.env"
        written = _value(self._parameters.get(name, []))
        found = {}
        for each in written if isinstance(written, list) else str(written).split():
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

    def _complete_nested(self, parameters: dict[str, Any]) -> None:
        """Gives each framework what a nested reference names: those that lack it run without the option."""
        of_framework = dict(_OF_FRAMEWORK.findall(json.dumps(list(self._parts()))))
        for name, rest in of_framework.items():
            for framework in {*self._values_of(names.FRAMEWORK), *self._values_of(name)}:
                if framework and f"{framework}.{rest}" not in self._set:
                    parameters[f"{framework}.{rest}"] = None

    def _drop_unknown(self, plan: dict[str, Any]) -> None:
        """Leaves out what refers to what is not there, and then what refers to that."""
        parts = [plan["parameters"], plan["variables"]]
        for extension in plan["extensions"]:
            parts += [extension.get("parameters", {}), *extension.get("cases", [])]
        dropped = True
        while dropped:
            known = {*self._environment_variables, *(name for part in parts for name in part)}
            found = [
                (part, name, reference)
                for part in parts
                for name, value in part.items()
                for reference in self._references(_value(value))
                if reference not in known and not reference.startswith("__condition.")
            ]
            dropped = bool(found)
            for part, name, reference in found:
                part.pop(name, None)
                self._lose(name, f"it refers to {reference}, which the plan lacks; write its value")

    def _references(self, value: Any) -> Iterator[str]:
        """What a value refers to; with another reference inside, by the frameworks of the plan."""
        text = json.dumps(value)
        yield from _REFERENCE.findall(text)
        for framework in self._values_of(names.FRAMEWORK) or [""]:
            filled = text
            for name in (self._named(names.FRAMEWORK), names.FAMILY):
                filled = filled.replace(f"${{{name}}}", str(framework))
            yield from _REFERENCE.findall(filled)


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
