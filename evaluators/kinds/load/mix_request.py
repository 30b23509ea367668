"""The requests of several models under load: a mix, and the search for its largest factor.

Because help shows their options, slow imports happen only where they are needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from inferometer.evaluators.jobs import options
from inferometer.evaluators.jobs.options import (
    NOT_NEGATIVE,
    POSITIVE,
    SEED,
    Range,
    check_options,
    check_value,
    declared,
    further,
    like,
    options_of,
    values_of,
)
from inferometer.evaluators.jobs.request import DatasetOptions, SystemOptions
from inferometer.evaluators.kinds.load.request import LoadRequest, MaxQpsRequest, WorkloadRequest
from inferometer.manifests.errors import ConfigurationError, suggestion

MIX_S = 60.0
"""The default duration of all blocks of a mix together, in seconds."""
_OF_A_MODEL = {
    *("initial_qps", "arrival", "percentile", "latency_bound_ms"),
    *("max_batch_size", "max_queue_delay_ms", "instances", "include_preprocess"),
}
_NOT_OF_A_MIX = {"model_path", "input_shape", "seed"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MixOfModels:
    """Several models of a file under load: what a mix and a search for its largest factor have in common.

    Attributes:
        models: The name and the load of each model, in the order of the file.
        text: The content of the file.

    Raises:
        ConfigurationError: An option is not valid, or the file is not; the message names the model.
    """

    load: ClassVar[type[WorkloadRequest] | type[MaxQpsRequest]]
    """What is asked of each model."""
    shared: ClassVar[tuple[str, ...]] = ("timeout_ms", "warm_up_queries", "seed", "force")
    """The options that each model's load takes over."""

    mix: Path = declared(
        MISSING,
        "YAML file with a list of models, each with a name and the options of its model, inputs and load.",
        "FILE",
        reads=True,
    )
    timeout_ms: float = like("timeout_ms", LoadRequest)
    warm_up_queries: int = like(
        "warm_up_queries", LoadRequest, help="Queries to send to each model before the measurement."
    )
    seed: int = declared(0, "Seed of the schedules and of random weights.", "N", within=SEED)
    force: bool = like("force", LoadRequest)
    models: Mapping[str, Any] = field(init=False, default_factory=dict)
    text: str = field(init=False, default="")

    def __post_init__(self) -> None:
        check_options(self)
        text, entries = _mix_entries(self.mix)
        shared = {name: getattr(self, name) for name in self.shared} | self._more(len(entries))
        models: dict[str, LoadRequest] = {}
        for number, entry in enumerate(entries, 1):
            try:
                name, load = _mixed_model(entry, shared, self.load)
                if models.setdefault(name, load) is not load:
                    raise ConfigurationError(f'"{name}" is the name of an earlier model; add another name')
            except ConfigurationError as error:
                raise ConfigurationError(f"{self.mix}: model {number}: {error}") from error
        object.__setattr__(self, "models", models)
        object.__setattr__(self, "text", text)

    def _more(self, models: int) -> dict[str, Any]:
        """Returns further options of each load, given the number of models."""
        return {}

    @property
    def given(self) -> dict[str, Any]:
        """The options that differ from their defaults, as stored in an evaluation."""
        return further(self, ()) | {"mix": str(self.mix)}


@dataclass(frozen=True, slots=True, kw_only=True)
class MixRequest(MixOfModels):
    """Several models under load, each alone and all together, in alternating blocks; see ``MixOfModels``."""

    load = WorkloadRequest

    blocks: int = declared(
        6, "Number of blocks of each model alone, and of all together.", "N", within=Range(2, 1000)
    )
    duration_s: float | None = declared(
        None, "Duration of a block.", "S", within=POSITIVE, default_text=f"{MIX_S:g} s for all blocks"
    )

    def _more(self, models: int) -> dict[str, Any]:
        return {"duration_s": self.duration_s or MIX_S / (self.blocks * (models + 1))}


@dataclass(frozen=True, slots=True, kw_only=True)
class MixSearchRequest(MixOfModels):
    """A search for the largest factor of all rates of a mix; see ``MixOfModels`` and ``MaxQpsRequest``."""

    load = MaxQpsRequest
    shared = (*MixOfModels.shared, "min_duration_s", "tolerance", "time_budget_s")

    min_duration_s: float = declared(
        options.PROBE_MIN_DURATION_S, "Minimum duration of a probe.", "S", within=Range(0.01, 86_400)
    )
    tolerance: float = like(
        "tolerance", MaxQpsRequest, help="Target for half the width of the answer's interval."
    )
    time_budget_s: float = like("time_budget_s", MaxQpsRequest)


def _mix_entries(path: Path) -> tuple[str, Sequence[Any]]:
    """Returns the content of a mix's file, and the models in it."""
    from inferometer.manifests.loader import read_yaml

    entries = read_yaml(path, "a mix", ConfigurationError)
    if not isinstance(entries, list) or not entries:
        raise ConfigurationError(f"{path}: is not a list of models, such as - model_name: DigitsCNN")
    return path.read_text(encoding="utf-8"), entries


def _mixed_model(
    entry: Any, shared: Mapping[str, Any], load: type[WorkloadRequest] | type[MaxQpsRequest]
) -> tuple[str, LoadRequest]:
    """Returns the name of a model of a mix, and its load; ``shared`` are the options of all models."""
    known = {"name": "name", "priority": "priority"} | {
        name: option.name
        for kind in (SystemOptions, DatasetOptions, load)
        for option in options_of(kind)
        if option.name not in _NOT_OF_A_MIX and (kind is not load or option.name in _OF_A_MODEL)
        for name in (option.name, *(flag.lstrip("-") for flag in option.flags))
    }
    if not isinstance(entry, dict) or not entry.get("model_name"):
        raise ConfigurationError("names no model; add model_name, such as model_name: DigitsCNN")
    given: dict[str, Any] = {}
    for key, value in entry.items():
        if key not in known:
            raise ConfigurationError(f'unknown option "{key}"; {suggestion(str(key), known)}')
        if (name := known[key]) in given:
            raise ConfigurationError(f"{key} is another name of {name}, which is given too; leave out one")
        given[name] = value
    name, priority = given.pop("name", entry["model_name"]), given.pop("priority", 0)
    check_value("priority", priority, "int", NOT_NEGATIVE)
    system = SystemOptions(**values_of(SystemOptions, given), seed=shared["seed"])
    inputs = DatasetOptions(**values_of(DatasetOptions, given))
    check_value("name", name, "str")
    address = system.agent_address or ""
    if address == "any" or set(address) & set(",="):
        raise ConfigurationError(f'agent is "{address}"; a model of a mix names the address of one agent')
    if priority and not address.startswith("kserve"):
        raise ConfigurationError("priority is only for a model on a server of the Open Inference Protocol")
    if load is MaxQpsRequest and given.get("latency_bound_ms") is None:
        raise ConfigurationError(
            f'"{name}" has no latency bound; add latency_bound, such as latency_bound: 20'
        )
    found = load(
        system=replace(system.request(), agents=(address,) if address else (), priority=priority),
        dataset=inputs.choice(),
        synthetic=inputs.synthetic,
        **values_of(load, given),
        **shared,
    )
    found.process  # noqa: B018 - an unknown arrival process is refused
    return name, found
