"""Converts a configuration of DLBS 0.4 to a plan of ``agent bench``.

It rejects, with a ``ConfigurationError``:

- text that is not JSON, or lacks the sections of a configuration;
- a parameter name that differs in one character from one of DLBS, if it is only set or only referred to;
- a first phase other than training and inference;
- a framework whose value cannot be evaluated, or refers to a parameter that does not exist;
- a configuration in which no cell has an equivalent, or whose plan does not expand.

It omits, with a reason, each parameter and value without an equivalent, Python that the expressions of
plans lack, values that refer to an omitted parameter, and cells of unsupported frameworks, precisions and
phases after the first.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inferometer.evaluators.plans import dlbs_names as names
from inferometer.evaluators.plans.cells import NODES, TASKS, Cell, cells_of, shown, with_references
from inferometer.evaluators.plans.expressions import has_expression, why_not_evaluated
from inferometer.evaluators.plans.plan import items_of, plan_of
from inferometer.manifests.errors import ConfigurationError

_SECTIONS = {"parameters": dict, "variables": dict, "extensions": list}
_OF_EXTENSION = {"condition": dict, "parameters": dict, "cases": list}
_ALSO_FRAMEWORK = ("exp.framework_id", names.FAMILY, "exp.framework_title")
"""The parameters that name the framework in place of ``exp.framework``, the most specific first."""
_REFERENCE = re.compile(r"\$\{([^${}]+)\}")
_ENABLED = f"${{{names.STATUS}}} != disabled"
_NESTED = re.compile(r"\$\{[^{}]*\$\{")
_OF_FRAMEWORK = re.compile(rf"\$\{{\$\{{({re.escape(names.FRAMEWORK)}(?:_family)?)\}}\.([^${{}}]+)\}}")
_OF_CONDITION = re.compile(r"__condition\.(?P<name>.+)_(?P<group>\d+)")


@dataclass(frozen=True, slots=True)
class Imported:
    """A plan that was imported from a configuration of DLBS.

    Attributes:
        plan: The plan, in the form of a plan's file.
        without_equal: The parts of the configuration that the plan lacks, each with its reason.
        cells: The number of cells of the plan.
        experiments: The number of experiments that DLBS runs. Experiments that differ in nothing that a plan
            has are one cell, and those of ``exp.trial`` are its repetitions.
    """

    plan: dict[str, Any]
    without_equal: tuple[str, ...]
    cells: int
    experiments: int


def import_dlbs(
    text: str, name: str, environment: Mapping[str, str] | None = None, *, defaults: bool = True
) -> Imported:
    """Returns the plan that corresponds to a configuration of DLBS.

    Conditions, cases and references keep their meaning: a parameter without an equivalent that one of them
    names remains a parameter of the plan. The plan states the defaults of DLBS that differ from those of
    ``agent bench``, and its constraints exclude the cells without an equivalent.

    Args:
        text: The configuration, in JSON; as in DLBS, it must not contain comments.
        name: The name of the plan.
        environment: The environment variables that references may name besides parameters.
        defaults: Whether parameters that are not set have the defaults of DLBS.

    Raises:
        ConfigurationError: The configuration is refused for a reason the module lists, or ``name`` is not
            a valid name for a plan.
    """
    content = _parsed(text)
    given = {each for part in _parts(content) for each in part}
    if not defaults and not given:
        raise _refused("sets no parameter, so DLBS builds no experiment")
    others = [each for each in _ALSO_FRAMEWORK if each in given]
    if others and names.FRAMEWORK not in given:
        content = _parsed(re.sub(rf"{re.escape(others[0])}(?![a-z])", names.FRAMEWORK, text))
    return _Import(content, name, environment or {}, defaults=defaults).imported()


def _parsed(text: str) -> dict[str, Any]:
    """Returns the sections of a configuration and the parts of its extensions, after checking their types."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _refused(f"cannot be read as JSON: {error}") from error
    if not isinstance(content, dict) or not _SECTIONS.keys() & content.keys():
        raise _refused(
            "has neither parameters nor variables nor extensions; give what DLBS reads, not the experiments "
            "that it builds"
        )
    _complete(content, _SECTIONS, "")
    for name, written in content["parameters"].items():
        if isinstance(written, dict) and "val" not in written:
            raise _refused(f"parameters.{name}: has no val")
    for number, extension in enumerate(content["extensions"]):
        if not isinstance(extension, dict):
            raise _refused(f"extensions.{number}: is not an object")
        _complete(extension, _OF_EXTENSION, f"extensions.{number}.")
        if not all(isinstance(case, dict) for case in extension["cases"]):
            raise _refused(f"extensions.{number}.cases: has an item that is not an object")
    variables = content["variables"].items()
    return {**content, "variables": {name: items_of(values) for name, values in variables}}


def _complete(content: dict[str, Any], kinds: Mapping[str, type], where: str) -> None:
    for part, kind in kinds.items():
        if not isinstance(content.setdefault(part, kind()), kind):
            raise _refused(f"{where}{part}: is not {'a list' if kind is list else 'an object'}")


def _parts(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the parts of a configuration that set parameters."""
    extended = (part for each in content["extensions"] for part in (each["parameters"], *each["cases"]))
    return [content["parameters"], content["variables"], *extended]


class _Import:
    """One import: the parts of the configuration, and the reasons for those that the plan lacks."""

    def __init__(
        self, content: dict[str, Any], name: str, environment: Mapping[str, str], *, defaults: bool
    ) -> None:
        self._name, self._environment, self._has_defaults = name, environment, defaults
        self._parameters, self._variables, self._extensions = (content[each] for each in _SECTIONS)
        self._parts = _parts(content)
        others = (each for each in content if each not in _SECTIONS)
        self._lost = dict.fromkeys(others, "DLBS ignores this section too")
        self._has_nested = False
        self._mentioned = self._find_mentioned()
        self._defaults = self._added_defaults() if defaults else set[str]()
        self._size = math.prod(len(values) for values in self._variables.values())
        self._set = {each for part in self._parts for each in part}
        self._sets_up_docker = any(each.endswith((".docker_image", ".host_libpath")) for each in self._set)
        self._check_names()
        self._phases = [str(each) for each in self._values_of(names.PHASE)] or ["training"]
        self._command = self._find_command()
        self._options = names.options_of(self._command)
        kept = {*names.DERIVED, *(names.GPUS if (self._set - self._defaults) & {*names.GPUS} else ())}
        own = self._set - ((kept & self._defaults) - {each for part in self._parts[2:] for each in part})
        self._names = {name: ours for name, ours in names.NAMES.items() if name in own}
        same = [each for each in names.GPUS if each in self._names]
        for each in same[1:]:
            self._lost[each] = f"{same[0]} determines it"
            del self._names[each]

    def imported(self) -> Imported:
        plan: dict[str, Any] = {
            "name": self._name,
            "description": "after a configuration of DLBS",
            "command": self._command,
            **self._settings(),
        }
        parameters = self._converted(self._parameters)
        plan |= {"parameters": parameters, "variables": self._converted_variables()}
        plan["extensions"] = [*self._converted_extensions(), *self._of_frameworks(parameters)]
        if self._sets_up_docker or names.DOCKER in self._set:
            parameters.setdefault(names.DOCKER, names.DEFAULTS[names.DOCKER])
            written = json.dumps(plan["extensions"])
            plan["extensions"] += [
                {"condition": {names.DOCKER: docker}, "parameters": {parameter: None}}
                for docker, parameter in names.UNUSED.items()
                if not docker or parameter in written
            ]
        if NODES in self._names.values():
            plan["extensions"] += self._tasks_on_nodes()
        if self._has_defaults and not {*self._names} & {*names.GPUS, "exp.device_type"}:
            parameters["gpus"] = names.DEFAULTS["exp.gpus"]
        self._complete_nested(parameters)
        self._drop_unknown(plan)
        if names.STATUS in self._set:
            plan["constraints"] = [_ENABLED]
        plan = {name: value for name, value in plan.items() if value or name == "parameters"}
        cells = self._leave_out(plan)
        lost = tuple(f"{name}: {reason}" for name, reason in self._lost.items())
        return Imported(plan, lost, len(cells), self._experiments)

    def _find_mentioned(self) -> set[str]:
        """Returns the names that occur in conditions or are referred to by values that are read."""
        mentioned = {name for extension in self._extensions for name in extension["condition"]}
        read = [*(name for part in self._parts for name in part if names.is_read(name)), *mentioned]
        while read:
            name = read.pop()
            for written in (json.dumps(part[name]) for part in self._parts if name in part):
                self._has_nested |= _NESTED.search(written) is not None
                new = {*_REFERENCE.findall(written)} - mentioned
                mentioned |= new
                read += new
        return mentioned

    def _added_defaults(self) -> set[str]:
        """Adds DLBS's defaults for named or set parameters, as an absent one would fit every condition."""
        present = {*self._parameters, *self._variables}
        needed = [*self._mentioned, *(each for part in self._parts for each in part)]
        added: set[str] = set()
        while needed:
            name = needed.pop()
            if name in names.DEFAULTS and name not in present | added:
                added.add(name)
                found = _REFERENCE.findall(str(names.DEFAULTS[name]))
                self._mentioned.update(found)
                needed += found
        self._parameters.update((name, value) for name, value in names.DEFAULTS.items() if name in added)
        return added

    def _check_names(self) -> None:
        """Raises an error for a misspelled name, and records unknown parameters that nothing refers to."""
        for name in sorted(self._set ^ self._mentioned):
            if nearest := names.typing_error(name):
                raise _refused(f'unknown parameter "{name}"; did you mean "{nearest}"?')
            if name in self._set and not names.is_known(name):
                self._lost[name] = "DLBS has no such parameter, and nothing refers to it"

    def _values_of(self, name: str) -> list[Any]:
        """Returns the values that a parameter can have, beginning with those of the grid."""
        found = list(self._variables.get(name, ()))
        if not found and name in self._parameters:
            found.append(_value(self._parameters[name]))
        found += [_value(part[name]) for part in self._parts[2:] if name in part]
        return list(dict.fromkeys(each for each in found if not isinstance(each, list)))

    def _find_command(self) -> str:
        """Returns the first phase's command; a plan has only one, so cells of other phases are omitted."""
        first = self._phases[0]
        if first not in ("training", "inference"):
            raise _refused(f'{names.PHASE}: unknown phase "{first}"; known: training, inference')
        if len(self._phases) == 1 and names.PHASE not in self._mentioned:
            for part in self._parts[:2]:
                part.pop(names.PHASE, None)
        if any(_value(self._parameters.get(f"{each}.data_loader_only")) is True for each in names.FRAMEWORKS):
            return "bench ingestion"
        return f"bench {first}"

    def _settings(self) -> dict[str, Any]:
        """Returns the settings that concern the plan as a whole."""
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
            return names.OUR_VARIABLE + name.removeprefix(names.RUNTIME_VARIABLE)
        return self._names.get(name, name)

    def _rewritten(self, value: Any) -> Any:
        """Returns a value whose references use the names of the plan."""

        def ours(name: str) -> str:
            found = _OF_CONDITION.fullmatch(name)
            return (
                f"__condition.{self._named(found['name'])}_{found['group']}" if found else self._named(name)
            )

        return with_references(value, ours)

    def _is_mentioned(self, name: str) -> bool:
        """Returns whether a condition or reference names a parameter; a nested one may name any framework."""
        of_framework = name.partition(".")[0] not in ("exp", "monitor", "runtime")
        return name in self._mentioned or (self._has_nested and of_framework)

    def _is_lost(self, name: str, value: Any) -> bool:
        """Returns whether a parameter is omitted, and records the reason."""
        is_option, is_mentioned = name in self._options, self._is_mentioned(name)
        if not is_option and name not in self._defaults and (reason := names.why_no_equal(name)):
            namespace = name.partition(".")[0]
            self._lost.setdefault(f"{namespace}.*" if namespace in names.FOREIGN else name, reason)
            if not is_mentioned:
                return True
        computed = name == names.FRAMEWORK and has_expression(value)
        if reason := "it is computed; write the value" if computed else _why_python(value):
            self._lose(name, reason)
            return True
        is_read = is_option or is_mentioned or self._named(name) != name
        if not is_read and _REFERENCE.search(json.dumps(value)):
            self._lost[name] = "no option and no condition reads it, and it refers to other values"
            return True
        return False

    def _lose(self, name: str, reason: str) -> None:
        """Omits a parameter; raises for the framework, because its cells would run in the default one."""
        if name in (names.FRAMEWORK, self._named(names.FRAMEWORK)):
            raise _refused(f"{names.FRAMEWORK}: {reason}")
        self._lost[name] = reason

    def _converted(self, given: Mapping[str, Any]) -> dict[str, Any]:
        converted: dict[str, Any] = {}
        for name, written in given.items():
            if name in names.ENVIRONMENTS and given is not self._parameters:
                self._lost[name] = f"in an extension, set {names.OUR_VARIABLE}NAME there"
            if name in names.ENVIRONMENTS or self._is_lost(name, _value(written)):
                continue
            value = self._rewritten(_value(written))
            if isinstance(written, dict):
                kept = {key: each for key, each in written.items() if key in ("type", "desc", "val_domain")}
                for key in (each for each in written if each not in (*kept, "val")):
                    self._lost[f"{name}.{key}"] = "a parameter has val, type, desc and val_domain"
                value = {"val": value, **kept}
            converted[self._named(name)] = value
        return converted

    def _converted_variables(self) -> dict[str, Any]:
        converted = {}
        for name, values in self._variables.items():
            kept = [self._rewritten(each) for each in values if not self._is_lost(name, each)]
            if not kept:
                continue
            read = {*self._options, *self._mentioned, names.STATUS, names.PHASE}
            read.update([names.DOCKER] if self._sets_up_docker else ())
            if self._named(name) == name and name not in read:
                self._lost[name] = "it changes no option, so that its values make one cell"
            converted[self._named(name)] = kept
        return converted

    def _converted_extensions(self) -> Iterator[dict[str, Any]]:
        for number, extension in enumerate(self._extensions):
            given = extension["condition"]
            computed = [name for name in given if has_expression(_value(self._parameters.get(name)))]
            if computed:
                self._lost[f"extensions.{number}"] = f"its condition uses {computed[0]}, which is computed"
                continue
            condition = {self._named(name): value for name, value in given.items()}
            parameters = self._converted(extension["parameters"])
            cases = [self._converted(case) for case in extension["cases"]]
            if parameters or cases:
                written = {"condition": condition, "parameters": parameters, "cases": cases}
                yield {name: value for name, value in written.items() if value}

    def _of_frameworks(self, parameters: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yields an extension for each framework that gives its cells the options of this framework only."""
        if names.FRAMEWORK not in self._names:
            return
        general = {names.NAMES[name] for name in self._set if name in names.NAMES}
        for framework in names.FRAMEWORKS:
            given: dict[str, Any] = {}
            for name, option in self._options.items():
                if not name.startswith(f"{framework}.") or name not in self._set or option in general:
                    continue
                # "" is nothing in DLBS
                if name in self._variables or parameters.setdefault(name, None) != "":
                    given[option] = f"${{{name}}}"
            given |= self._variables_of(framework)
            if given:
                written = [str(each) for each in self._values_of(names.FRAMEWORK)]
                same = [each for each in written if each.casefold() == framework] or [framework]
                yield {"condition": {self._named(names.FRAMEWORK): same}, "parameters": given}

    def _variables_of(self, framework: str) -> dict[str, Any]:
        """Returns the environment variables of a framework, which DLBS writes as NAME=VALUE."""
        name = f"{framework}.env"
        written = _value(self._parameters.get(name, []))
        found = {}
        for each in written if isinstance(written, list) else str(written).split():
            variable, equals, value = str(each).partition("=")
            if reason := _why_python(each):
                self._lost[f"{name} {variable}"] = reason
            elif not equals or re.search(r"\$\w", value):
                self._lost[f"{name} {variable}"] = f"a shell would interpret it; set {names.OUR_VARIABLE}NAME"
            else:
                found[names.OUR_VARIABLE + variable] = self._rewritten(value)
        return found

    def _tasks_on_nodes(self) -> Iterator[dict[str, Any]]:
        """Yields the extensions that give a node a task for each GPU, as DLBS does for PyTorch alone."""
        frameworks = [each for each in self._values_of(names.FRAMEWORK) if str(each).casefold() == "pytorch"]
        gpus = [each for each in self._values_of(names.GPUS[0]) if "," in str(each)]
        if frameworks and not any("$" in str(each) for each in self._values_of(names.GPUS[0])):
            for each in gpus:
                condition = {self._named(names.FRAMEWORK): frameworks, self._named(names.GPUS[0]): [each]}
                yield {"condition": condition, "parameters": {TASKS: len(str(each).split(","))}}

    def _complete_nested(self, parameters: dict[str, Any]) -> None:
        """Gives each framework the parameters that a nested reference names; absent ones become None."""
        for name, rest in dict(_OF_FRAMEWORK.findall(json.dumps(self._parts))).items():
            for framework in dict.fromkeys((*self._values_of(names.FRAMEWORK), *self._values_of(name))):
                if framework and f"{framework}.{rest}" not in self._set:
                    parameters[f"{framework}.{rest}"] = None

    def _drop_unknown(self, plan: dict[str, Any]) -> None:
        """Omits values that refer to missing parameters, then values that refer to the omitted ones."""
        parts = [plan["parameters"], plan["variables"]]
        for each in plan["extensions"]:
            parts += [each.get("parameters", {}), *each.get("cases", [])]
        dropped = True
        while dropped:
            known = {*self._environment, *(name for part in parts for name in part)}
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
        """Yields the references in a value; a nested reference is expanded for each framework of the plan."""
        text = json.dumps(value)
        yield from _REFERENCE.findall(text)
        for framework in self._values_of(names.FRAMEWORK) or [""]:
            filled = text
            for name in (self._named(names.FRAMEWORK), names.FAMILY):
                filled = filled.replace(f"${{{name}}}", str(framework))
            yield from _REFERENCE.findall(filled)

    def _leave_out(self, plan: dict[str, Any]) -> Sequence[Cell]:
        """Adds constraints that exclude the cells without an equivalent, and returns the other cells."""
        constraints = list(plan.get("constraints", ()))
        # a variable that the plan lacks changes no cell, but DLBS has an experiment for each of its values
        size = math.prod(len(values) for values in plan.get("variables", {}).values())
        self._experiments = len(self._cells(plan, constraints, distinct=False)) * self._size // size
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
            values = [(name, shown(cell.parameters.get(self._named(name)))) for name in names.ALLOWED]
            refused = [(*each, reason) for each in values if (reason := names.why_not(*each))]
            counts.update(refused[:1])
        if cells and counts.total() == len(cells):
            reasons = "; ".join(f"{name}={value}: {reason}" for name, value, reason in counts)
            raise _refused(f"none of its {self._experiments} experiments has an equivalent here: {reasons}")
        for (name, value, reason), count in counts.items():
            self._lost[f"{name}={value}"] = f"{count} of {len(cells)} cells are left out: {reason}"
            plan["parameters"].setdefault(self._named(name), None)
            constraints.append(f"${{{self._named(name)}}} != {value}")
        plan |= {"constraints": constraints} if constraints else {}
        return self._cells(plan, constraints)

    def _cells(
        self, plan: Mapping[str, Any], constraints: Sequence[str], *, distinct: bool = True
    ) -> Sequence[Cell]:
        try:
            found = plan_of({**plan, "constraints": constraints}, "plan")
            return cells_of(found, environment=self._environment, distinct=distinct)
        except ConfigurationError as error:
            raise _refused(str(error).removeprefix("plan: ")) from error


def _refused(reason: str) -> ConfigurationError:
    return ConfigurationError(f"DLBS's configuration: {reason}")


def _value(written: Any) -> Any:
    """Returns the value of a parameter, which may be written with its type and description."""
    return written.get("val") if isinstance(written, dict) else written


def _why_python(value: Any) -> str:
    """Returns why an expression in a value has no equivalent; empty for other values."""
    reasons = (why_not_evaluated(text) for text in items_of(value) if isinstance(text, str))
    if reason := next(filter(None, reasons), ""):
        return f"{reason}; write the value, or add an extension with the value for each condition"
    return ""
