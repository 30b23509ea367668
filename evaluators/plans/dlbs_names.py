"""The parameters of DLBS 0.4 and their names in plans, for configurations and ``-P``, ``-V`` and ``-E``."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from inferometer.evaluators.plans.cell_command import IMAGE, LIBRARIES, OF_CELL, VARIABLE
from inferometer.evaluators.plans.cells import referred_in, with_references
from inferometer.evaluators.plans.plan import Plan, items_of
from inferometer.manifests.errors import ConfigurationError, suggestion

FRAMEWORKS = ("mxnet", "pytorch")
"""The frameworks of DLBS that this program supports, by DLBS's names, which ``framework_name`` accepts."""
FOREIGN = (
    *("tensorflow", "tensorrt", "nvcnn", "nvtfcnn", "openvino"),
    *("caffe", "caffe2", "bvlc_caffe", "nvidia_caffe", "intel_caffe"),
)
"""The frameworks of DLBS that this program does not support."""
FRAMEWORK, FAMILY, PHASE = "exp.framework", "exp.framework_family", "exp.phase"
STATUS, TRIAL, DOCKER = "exp.status", "exp.trial", "exp.docker"
VAR_ORDER, RERUN = "sys.plan_builder.var_order", "exp.rerun"
RUNTIME_VARIABLE, OUR_VARIABLE = "runtime.env.", VARIABLE
ENVIRONMENTS = tuple(f"{framework}.env" for framework in FRAMEWORKS)
UNUSED = {True: LIBRARIES, False: IMAGE}
"""The parameter of a cell that has no effect with Docker, and the one without."""
GPUS = ("exp.gpus", "exp.num_gpus", "exp.num_local_gpus")
"""The parameters that define on which GPUs, or on how many, a cell runs; the first one set applies."""
ALLOWED: Mapping[str, tuple[str, str]] = {
    FRAMEWORK: (
        f"(?i:{'|'.join(FRAMEWORKS)})",
        f"not among the supported frameworks of DLBS: {', '.join(FRAMEWORKS)}",
    ),
    "exp.dtype": ("float|float32|float16", "dtype takes float, float32, float16 and bfloat16"),
    "exp.gpus": ("[^:]*", "a replica has one GPU here; separate them with commas"),
}
"""For each parameter, a pattern of the values that have an equivalent here, and why others have none."""


class Name(NamedTuple):
    """The equivalent of a parameter of DLBS in a plan.

    Attributes:
        ours: The parameter of the plan that it becomes; empty for none.
        reason: Why it has no equivalent; empty for a parameter that an imported plan keeps under DLBS's name.
        default: DLBS's default, for a configuration that does not set the parameter; None for none.
        instead: What to write in a plan, since ``-P``, ``-V`` and ``-E`` refuse the parameter; empty for
            none.
    """

    ours: str = ""
    reason: str = ""
    default: Any = None
    instead: str = ""


def _table() -> Iterator[tuple[str, Name]]:
    given = yaml.safe_load(Path(__file__).with_name("dlbs.yml").read_text(encoding="utf-8"))
    yield from ((name, Name(**fields)) for name, fields in given["parameters"].items())
    for name, fields in given["of_each_framework"].items():
        yield from ((f"{framework}.{name}", Name(**fields)) for framework in FRAMEWORKS)


TABLE: Mapping[str, Name] = dict(_table())
"""The parameters of DLBS, except those of unsupported frameworks."""
NAMES = {name: each.ours for name, each in TABLE.items() if each.ours and not name.startswith(FRAMEWORKS)}
"""Our names for the parameters that all frameworks share."""
DEFAULTS = {name: each.default for name, each in TABLE.items() if each.default is not None}
DERIVED = {name for name, value in DEFAULTS.items() if str(value).startswith("$(")}
"""The parameters that DLBS computes from others; computed ones keep DLBS's name, and are no options."""


def options_of(command: str) -> Mapping[str, str]:
    """Returns the options of a command by framework-specific parameter, such as ``mxnet.workspace``."""
    found = {name: each.ours for name, each in TABLE.items() if each.ours and name not in NAMES}
    return {n: ours for n, ours in found.items() if ours != "kv_store" or command == "bench training"}


def why_no_equal(name: str) -> str | None:
    """Returns why a parameter has no equivalent; None for one that a plan keeps under DLBS's name."""
    namespace = name.partition(".")[0]
    if namespace in FOREIGN:
        return f"framework {namespace} is not supported; frameworks of DLBS that are: {', '.join(FRAMEWORKS)}"
    return TABLE.get(name, Name()).reason or None


def why_not(name: str, value: Any) -> str | None:
    """Returns why a value of a parameter has no equivalent; None if it has one, or is empty."""
    if not value or name not in ALLOWED:
        return None
    fitting, reason = ALLOWED[name]
    return None if re.fullmatch(fitting, str(value)) else reason


def is_known(name: str) -> bool:
    """Returns whether DLBS has a parameter, including private ones and those of unsupported frameworks."""
    namespace, _, rest = name.partition(".")
    is_listed = name in TABLE or namespace in FOREIGN
    return is_listed or rest.startswith("__") or name.startswith(RUNTIME_VARIABLE)


def is_read(name: str) -> bool:
    """Returns whether a plan reads a parameter, as an option or to decide how its cells run."""
    known = TABLE.get(name, Name())
    is_used = bool(known.ours or known.instead) or name in (STATUS, *ENVIRONMENTS)
    return is_used or name.startswith(RUNTIME_VARIABLE)


def typing_error(name: str) -> str | None:
    """Returns the parameter of DLBS that differs from a name in one character, or in two that are swapped."""
    return None if is_known(name) else next((each for each in TABLE if _is_near(name, each)), None)


def _is_near(one: str, other: str) -> bool:
    while one and other and one[0] == other[0]:
        one, other = one[1:], other[1:]
    while one and other and one[-1] == other[-1]:
        one, other = one[:-1], other[:-1]
    return max(len(one), len(other)) == 1 or (len(one) == 2 and one == other[::-1])


class GivenNames:
    """Translates the names given by ``-P``, ``-V`` and ``-E``: options, the plan's own names, or DLBS's.

    A name without a dot is an option, which the command checks. A name with a dot is refused unless the plan
    or one of the extensions sets it, tests it or refers to it.

    Args:
        plan: The plan.
        given: The names in ``-P`` and ``-V``.
        extensions: The values of ``-E``. The check of the plan refuses values that are not extensions.
    """

    def __init__(self, plan: Plan, given: Iterable[str], extensions: Sequence[Any]) -> None:
        self._command, self._extensions = plan.command, extensions
        self._of_frameworks: dict[str, str] = {}
        self._known = {*plan.parameters, *plan.variables}
        for extension in plan.extensions:
            self._known.update(extension.condition, extension.parameters, *extension.cases)
        self._known.update(*plan.include, *plan.exclude)
        content = plan.model_dump(mode="json", exclude_unset=True)
        self._set, self._used = set(given), referred_in(json.dumps([content, *extensions], default=str))
        for part, names in (each for extension in extensions for each in _parts(extension)):
            (self._used if part == "condition" else self._set).update(names)

    def renamed(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the values, with the plan's names as keys.

        Raises:
            ConfigurationError: The plan has no such name, or no equivalent for DLBS's parameter or value.
        """
        return self._renamed(given, self._used)

    def extensions(self) -> list[Any]:
        """Returns the extensions with the names of the plan; a value that is not an extension is unchanged.

        Raises:
            ConfigurationError: As for ``renamed``.
        """
        return [self._extension(each) if isinstance(each, Mapping) else each for each in self._extensions]

    def _extension(self, given: Mapping[str, Any]) -> dict[str, Any]:
        found = dict(given)
        for part, used in (("condition", self._set), ("parameters", self._used)):
            if isinstance(values := found.get(part), Mapping):
                found[part] = self._renamed(values, used)
        if isinstance(cases := found.get("cases"), list):
            found["cases"] = [self.renamed(each) if isinstance(each, Mapping) else each for each in cases]
        return found

    def _renamed(self, given: Mapping[str, Any], used: Collection[str]) -> dict[str, Any]:
        return {
            self._name(name, value, used): with_references(value, self._referred)
            for name, value in given.items()
        }

    def completed(self, content: dict[str, Any]) -> dict[str, Any]:
        """Returns a plan's content with an extension for each given option of one framework."""
        for name, option in self._of_frameworks.items():
            content["parameters"].setdefault(name, None)
            condition = {NAMES[FRAMEWORK]: f"(?i:{name.partition('.')[0]})$"}
            added = {"condition": condition, "parameters": {option: f"${{{name}}}"}}
            content["extensions"] = [*content["extensions"], added]
        return content

    def _name(self, name: str, value: Any, used: Collection[str]) -> str:
        if "." not in name or name in self._known:
            return name
        if option := options_of(self._command).get(name):
            self._of_frameworks[name] = option
            return name
        ours = self._spelled(_ours(name))
        if ours != name:
            for each in items_of(value):
                if reason := why_not(name, each):
                    raise ConfigurationError(f"{name}={each}: {reason}")
            return ours
        if (
            name in (*OF_CELL, STATUS)
            or name.startswith(VARIABLE)
            or any(fnmatchcase(name, each) for each in used)
        ):
            return name
        known = [each for each in (*self._known, *OF_CELL, *NAMES) if "." in each]
        raise ConfigurationError(
            f"{name}: the plan has no such parameter, and nothing refers to it; {suggestion(name, known)}"
        )

    def _referred(self, name: str) -> str:
        return name if name in self._known else self._spelled(NAMES.get(name, name))

    def _spelled(self, name: str) -> str:
        """Returns ``model`` for ``model_name`` if the plan has it, as both are one option."""
        return "model" if name == NAMES["exp.model"] and "model" in self._known else name


def _ours(name: str) -> str:
    """Returns the name of a parameter of DLBS in a plan; any other name is unchanged.

    Raises:
        ConfigurationError: A plan has no equivalent of the parameter.
    """
    if name.startswith(RUNTIME_VARIABLE):
        return VARIABLE + name.removeprefix(RUNTIME_VARIABLE)
    reason = why_no_equal(name) or TABLE.get(name, Name()).instead
    if reason:
        raise ConfigurationError(f"{name}: has no equivalent here: {reason}")
    return NAMES.get(name, name)


def _parts(extension: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields the parts of an extension that map names to values, each with its key in the extension."""
    if isinstance(extension, Mapping):
        cases = extension.get("cases")
        listed = [("cases", each) for each in cases] if isinstance(cases, list) else []
        yield from (each for each in [*extension.items(), *listed] if isinstance(each[1], Mapping))
