"""Generator of client/api/load_arguments.py: the arguments of the library that requests declare.

python -m tools.library_arguments         write the file
"""

from __future__ import annotations

import textwrap
from pathlib import Path

from inferometer.evaluators.jobs.options import Option, options_of
from inferometer.evaluators.kinds.load.request import LoadRequest

FILE = Path(__file__).resolve().parents[1] / "client" / "api" / "load_arguments.py"
MEND = "run: make stubs"
NAMED = ("initial_qps", "arrival", "percentile")
"""The options that both functions name themselves."""
NOT_OF_THE_LIBRARY = ("repeat",)
"""A function measures once."""
_HEAD = '''"""The arguments of loads that requests declare, from which make stubs writes them; do not edit."""

from __future__ import annotations

from typing import TypedDict


class DeclaredLoadArguments(TypedDict, total=False):
    """Further arguments of ``workload`` and ``max_qps``, with the defaults of the commands.

    Attributes:
'''
_WIDTH = 110


def text() -> str:
    """Returns the file as the requests declare it now."""
    every = [each for each in options_of(LoadRequest) if each.name not in (*NAMED, *NOT_OF_THE_LIBRARY)]
    attributes = "".join(_attribute(each) for each in every)
    names = "".join(f"    {each.name}: {each.kind}{' | None' * (each.default is None)}\n" for each in every)
    return f'{_HEAD}{attributes}    """\n\n{names}'


def _attribute(each: Option) -> str:
    plain = "" if each.default in (None, False) else f"{each.default:g}"
    default = each.declared.default_text or plain
    told = f"{each.declared.help.rstrip('.')}" + (f"; by default {default}." if default else ".")
    lines = textwrap.wrap(f"{each.name}: {told}", _WIDTH - 8, subsequent_indent="    ")
    return "".join(f"        {line}\n" for line in lines)


def main() -> None:
    """Writes the file."""
    FILE.write_text(text(), encoding="utf-8")


if __name__ == "__main__":
    main()
