"""Generator of client/api/arguments.py: the arguments of the library that requests declare.

python -m tools.library_arguments         write the file
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inferometer.evaluators.jobs.options import Option, options_of, plain
from inferometer.evaluators.jobs.request import (
    BatchSystemOptions,
    DatasetOptions,
    ScoreOptions,
    SystemOptions,
)
from inferometer.evaluators.kinds.batches.request import BatchOptions, EvaluationRequest, UrlsOptions
from inferometer.evaluators.kinds.ingestion.request import IngestionRequest
from inferometer.evaluators.kinds.load.request import LoadRequest, MaxQpsRequest, WorkloadRequest
from inferometer.evaluators.kinds.operators.options import OperatorOptions
from inferometer.evaluators.kinds.training.request import TrainingData, TrainingOptions, TrainingRequest

FILE = Path(__file__).resolve().parents[1] / "client" / "api" / "arguments.py"
MEND = "run: make stubs"
_HEAD = '''"""The arguments of the library that requests declare, written by make stubs; do not edit."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypedDict
'''
_WIDTH = 110
NAMED = ("model", "dataset")
"""The arguments that the functions declare themselves."""
_SEVERAL = ("framework", "batch_size", "gpu", "threads", "precision")
"""The arguments that can have several values in a sweep, which declares them itself."""
_OF_TRAIN = (
    *("batch_size", "num_batches", "num_warmup_batches", "num_epochs", "optimizer", "learning_rate"),
    *("momentum", "weight_decay", "validation", "save_path", "tracer_address", "trace_url"),
)
"""The arguments that ``train`` declares itself, or does not have."""
_ONE_EVALUATION = ("repeat", "leveled")
_HELP = {
    "sample_ids": "The ids of the samples that count.",
    "synthetic": "Predict random tensors instead of a dataset's inputs, for speed only; so it is where a "
    "model without a manifest has no inputs.",
    "batch_size": "Inputs in a batch; by default 64, fewer for fewer inputs, 1 for a model of images of any "
    "size, or what a file fixes.",
    "fail_on_error": "Stop at the first input that fails; so it is for a model without a manifest.",
}
"""The descriptions of evaluations and loads that differ from those of the command line."""
_TYPES = {
    "Path": "str | os.PathLike[str]",
    "tuple[int, ...]": "Sequence[int]",
    "tuple[str, ...]": "Sequence[str]",
    **dict.fromkeys(("Cache", "Precision", "Scenario", "SharedMemoryUse", "TraceLevel", "Weights"), "str"),
}


@dataclass(frozen=True)
class _Arguments:
    """A class of the file.

    Attributes:
        of: The functions that accept the arguments.
        base: The class that it extends.
        requests: The classes that declare the options.
        but: The arguments to omit, besides those of the base and ``NAMED``.
        only: The only arguments to add; None adds all.
        told: The descriptions that differ from those of the command line.
    """

    of: str
    base: str
    requests: tuple[type[Any], ...]
    but: Collection[str] = ()
    only: Collection[str] | None = None
    told: Mapping[str, str] = field(default_factory=lambda: _HELP)


_BATCHES = (BatchSystemOptions, DatasetOptions, BatchOptions, UrlsOptions, EvaluationRequest)
CLASSES: Mapping[str, _Arguments] = {
    "SharedArguments": _Arguments(
        "``evaluate``, ``sweep``, ``measure``, ``workload`` and ``max_qps``",
        "TypedDict",
        (SystemOptions,),
        but=_SEVERAL,
    ),
    "SweepArguments": _Arguments("``sweep``", "SharedArguments", _BATCHES, but=(*_SEVERAL, *_ONE_EVALUATION)),
    "EvaluateArguments": _Arguments(
        "``evaluate``", "SweepArguments", _BATCHES, only=(*_SEVERAL, *_ONE_EVALUATION)
    ),
    "LoadArguments": _Arguments(
        "``workload`` and ``max_qps``",
        "SharedArguments",
        (SystemOptions, DatasetOptions, LoadRequest),
        but=("dataset_category",),
    ),
    "WorkloadArguments": _Arguments("``workload``", "LoadArguments", (WorkloadRequest,)),
    "MaxQpsArguments": _Arguments("``max_qps``", "LoadArguments", (MaxQpsRequest,)),
    "ScoreArguments": _Arguments("``score``", "TypedDict", (ScoreOptions,)),
    "DeclaredDataArguments": _Arguments(
        "``train`` and ``ingest``", "TypedDict", (TrainingData,), but=("seed",)
    ),
    "DeclaredTrainingArguments": _Arguments(
        "``train``", "TypedDict", (TrainingOptions, TrainingRequest), but=_OF_TRAIN, told={}
    ),
    "DeclaredIngestionArguments": _Arguments(
        "``ingest``", "TypedDict", (IngestionRequest,), but=("batch_size", "reader", "fail_on_error")
    ),
    "DeclaredOperatorArguments": _Arguments(
        "``benchmark_operators``", "TypedDict", (OperatorOptions,), but=("dtype",)
    ),
}


def text() -> str:
    """Returns the text of the file, from the current declarations of the requests."""
    return _HEAD + "".join(_class(name, each) for name, each in CLASSES.items())


def options_in(name: str) -> dict[str, Option]:
    """Returns the options of a class by argument, including those of its bases."""
    if name not in CLASSES:
        return {}
    found = CLASSES[name]
    own = options_in(found.base)
    for request in found.requests:
        for option in options_of(request):
            wanted = found.only is None or option.argument in found.only
            if wanted and option.argument not in {*found.but, *NAMED}:
                own.setdefault(option.argument, option)
    return own


def _class(name: str, found: _Arguments) -> str:
    inherited = options_in(found.base)
    own = {argument: each for argument, each in options_in(name).items() if argument not in inherited}
    beside, defaults = f", beside those of ``{found.base}``", ""
    if found.base == "TypedDict":
        beside, defaults = "", "    They have the defaults of the commands.\n\n"
    attributes = "".join(
        f"{line}\n" for argument, each in own.items() for line in _lines(argument, each, found.told)
    )
    names = "".join(f"    {argument}: {_type(each)}\n" for argument, each in own.items())
    if not own:  # until there is an option that the functions do not name
        return f'\n\nclass {name}({found.base}, total=False):\n    """Further arguments of {found.of}."""\n'
    return (
        f"\n\nclass {name}({found.base}, total=False):\n"
        f'    """Further arguments of {found.of}{beside}.\n\n{defaults}'
        f'    Attributes:\n{attributes}    """\n\n{names}'
    )


def _lines(argument: str, each: Option, descriptions: Mapping[str, str]) -> Iterator[str]:
    value = plain(each.asked)
    default = "" if value in (None, False) else f"{value:g}" if isinstance(value, float) else f"{value}"
    default = each.declared.default_text or default
    told = descriptions.get(argument, each.declared.help)
    told = told.rstrip(".") + (f"; by default {default}." if default and "default" not in told else ".")
    yield from _wrapped(f"        {argument}: {_in_python(told)}", "            ")


def _wrapped(line: str, indent: str) -> list[str]:
    return textwrap.wrap(line, _WIDTH, subsequent_indent=indent, break_on_hyphens=False)


def _in_python(told: str) -> str:
    """Replaces the flags in a text by the names of the arguments."""
    arguments = {
        flag: each.argument
        for request in (*_BATCHES, WorkloadRequest, MaxQpsRequest)
        for each in options_of(request)
        for flag in each.flags
    }
    return re.sub(r"--\w+", lambda found: f"``{arguments.get(found[0], found[0])}``", told)


def _type(each: Option) -> str:
    kind = "int | str" if each.kind == "int" and each.declared.made else _TYPES.get(each.kind, each.kind)
    return kind + " | None" * (each.asked is None)


def main() -> None:
    """Writes the file."""
    FILE.write_text(text(), encoding="utf-8")


if __name__ == "__main__":
    main()
