"""Generator of the stubs of ``inferometer.operators``, whose classes type checkers and editors cannot see.

python -m tools.operator_stubs    write them
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).resolve().parents[1] / "inferometer" / "operators"
MEND = "run: make stubs"
_LIBRARY = "inferometer.client.api.operators"


def stubs() -> Mapping[Path, str]:
    """Returns the text of each stub by its file."""
    found = {}
    for path in sorted(FOLDER.rglob("*.py")):
        name = ".".join(path.relative_to(FOLDER.parents[1]).with_suffix("").parts).removesuffix(".__init__")
        module = importlib.import_module(name)
        if hasattr(module, "__all__"):
            found[path.with_suffix(".pyi")] = "".join(_stub(module))
    return found


def _stub(module: ModuleType) -> Iterator[str]:
    """Yields the text of a stub in pieces, as the formatter would leave it."""
    # in the order of the linter: constants, classes, functions
    names = sorted(module.__all__, key=lambda name: (not name.isupper(), not name[0].isupper(), name))
    members = {name: getattr(module, name) for name in names}
    classes = {name: each for name, each in members.items() if inspect.isclass(each)}
    own = {name: each for name, each in classes.items() if each.__module__ == module.__name__}
    yield f'# Generated; do not edit. To regenerate it, {MEND}\n"""{module.__doc__}"""\n\n'
    bases = sorted({each.__base__.__name__ for each in own.values()} | {"RunAll"})
    yield f"from {_LIBRARY}.benchmark import {', '.join(bases)}\n"
    if parts := [name for name, each in members.items() if inspect.ismodule(each)]:
        yield f"from {module.__name__} import {', '.join(parts)}\n"
    for place in sorted({each.__module__ for each in classes.values()} - {module.__name__}):
        imported = ",\n    ".join(name for name, each in classes.items() if each.__module__ == place)
        yield f"from {place} import (\n    {imported},\n)\n"
    yield "\n__all__ = [\n"
    yield from (f'    "{name}",\n' for name in names)
    yield "]\n\n"
    yield from (
        f'class {name}({each.__base__.__name__}):\n    """{each.__doc__}"""\n\n' for name, each in own.items()
    )
    yield from (f"{name}: RunAll\n" for name, each in members.items() if inspect.isfunction(each))


def main() -> None:
    """Writes the stubs."""
    for path, text in stubs().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
