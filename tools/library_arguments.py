"""Generator of client/api/arguments.py: the arguments of the library that requests declare.

python -m tools.library_arguments         write the file
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from inferometer.evaluators.jobs.options import Option, options_of
from inferometer.evaluators.kinds.ingestion.request import IngestionRequest
from inferometer.evaluators.kinds.load.request import LoadRequest
from inferometer.evaluators.kinds.operators.options import OperatorOptions
from inferometer.evaluators.kinds.training.options import TrainingData, TrainingOptions
from inferometer.evaluators.kinds.training.request import TrainingRequest

FILE = Path(__file__).resolve().parents[1] / "client" / "api" / "arguments.py"
MEND = "run: make stubs"
DECLARED: dict[str, tuple[str, tuple[type[Any], ...]]] = {
    "Load": ("``workload`` and ``max_qps``", (LoadRequest,)),
    "Data": ("``train`` and ``ingest``", (TrainingData,)),
    "Training": ("``train``", (TrainingOptions, TrainingRequest)),
    "Ingestion": ("``ingest``", (IngestionRequest,)),
    "Operator": ("``benchmark_operators``", (OperatorOptions,)),
}
"""The functions of each class of arguments, and the classes that declare them."""
NAMED = {
    "Load": ("initial_qps", "arrival", "percentile", "repeat"),
    "Data": ("seed",),
    "Training": (
        *("batch_size", "num_batches", "num_warmup_batches", "num_epochs", "optimizer", "learning_rate"),
        *("momentum", "weight_decay", "validation", "save_weights"),
    ),
    "Ingestion": ("batch_size", "reader", "fail_on_error"),
    "Operator": ("dtype",),
}
"""The options that the functions name themselves; a function measures once, so that none has ``repeat``."""
_HEAD = '''"""Arguments of the library that requests declare; make stubs writes them, do not edit."""

from __future__ import annotations

from typing import TypedDict
'''
_WIDTH = 110


def text() -> str:
    """Returns the file as the requests declare it now."""
    return _HEAD + "".join(map(_arguments, DECLARED))


def _arguments(name: str) -> str:
    """Returns a class of arguments."""
    functions, requests = DECLARED[name]
    every = [each for kind in requests for each in options_of(kind) if each.argument not in NAMED[name]]
    documented = f'    """Further arguments of {functions}, with the defaults of the commands.'
    if every:
        documented += "\n\n    Attributes:\n" + "".join(map(_attribute, every)) + "    "
    names = "".join(f"    {each.argument}: {_type(each)}\n" for each in every)
    return f'\n\nclass Declared{name}Arguments(TypedDict, total=False):\n{documented}"""\n' + (
        f"\n{names}" if names else ""
    )


def _type(each: Option) -> str:
    kind = "str" if each.declared.choices or each.kind == "Path" else each.kind
    return f"{kind}{' | None' * (each.default in (None, ''))}"


def _attribute(each: Option) -> str:
    default = each.declared.default_text or _default(each.default)
    told = f"{each.declared.help.rstrip('.')}" + (f"; by default {default}." if default else ".")
    lines = textwrap.wrap(f"{each.argument}: {told}", _WIDTH - 8, subsequent_indent="    ")
    return "".join(f"        {line}\n" for line in lines)


def _default(value: Any) -> str:
    value = getattr(value, "value", value)
    return "" if value in (None, False) else f"{value:g}" if isinstance(value, float) else str(value)


def main() -> None:
    """Writes the file."""
    FILE.write_text(text(), encoding="utf-8")


if __name__ == "__main__":
    main()
