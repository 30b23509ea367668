"""The site of the documentation, which ``make docs-site`` builds from the Markdown pages.

The source is the root of the checkout, so that links to pages beside docs/ lead somewhere. docs/index.md has
the order of the pages; the docstrings are the reference of the library.
"""

from __future__ import annotations

import enum
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

from sphinx.application import Sphinx

import inferometer

project = "inferometer"
release = inferometer.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]

_ROOT = Path(__file__).resolve().parents[1]
_FOLDERS = {"docs", "docker"}
root_doc = "docs/index"
include_patterns = ["docs/*.md", "docker/README.md", "CONTRIBUTING.md", "CHANGELOG.md"]
exclude_patterns = [path.name for path in _ROOT.iterdir() if path.is_dir() and path.name not in _FOLDERS]

myst_heading_anchors = 4
smartquotes = False  # an option begins with two hyphens

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
maximum_signature_line_length = 90
napoleon_numpy_docstring = False
napoleon_use_ivar = True
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = f"inferometer {release}"
html_extra_path = ["site"]  # the front page leads to docs/index.html
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False

# The sections of the reference, and the modules whose public names stand there; the first that fits counts.
_SECTIONS = {
    "docs/library-reference": ("Functions", "Results"),
    "docs/plugin-reference": ("Frameworks", "Tasks", "Datasets", "Reports", "Errors"),
}
_OWNERS = (
    ("client", "Results"),
    ("agent.tasks", "Tasks"),
    ("agent.preprocessing.inputs", "Tasks"),
    ("evaluators.tasks", "Tasks"),
    ("evaluators.datasets", "Datasets"),
    ("evaluators", "Reports"),
    ("manifests.errors", "Errors"),
    ("", "Frameworks"),
)


def _reference(page: str) -> Iterator[str]:
    """Yields what documents the public names that belong to a page, as reStructuredText in Markdown."""
    things = {name: getattr(inferometer, name) for name in inferometer.__all__ if not name.startswith("__")}
    for section in _SECTIONS.get(page, ()):
        entries = [_documented(name, thing) for name, thing in things.items() if _section(thing) == section]
        yield f"\n## {section}\n\n```{{eval-rst}}\n{''.join(entries)}```\n"


def _section(thing: object) -> str:
    owner = str(getattr(thing, "__module__", "")).removeprefix("inferometer.")
    section = next(section for module, section in _OWNERS if owner.startswith(module))
    return "Functions" if section == "Results" and inspect.isfunction(thing) else section


def _documented(name: str, thing: object) -> str:
    if inspect.isfunction(thing):
        return f".. autofunction:: inferometer.{name}\n\n"
    if not inspect.isclass(thing):
        return f".. autodata:: inferometer.{name}\n   :no-value:\n\n"
    if issubclass(thing, Exception):
        return f".. autoexception:: inferometer.{name}\n   :show-inheritance:\n\n"
    members = (
        ":undoc-members:"
        if issubclass(thing, enum.Enum)
        else ":exclude-members: model_config, model_post_init"
    )
    return f".. autoclass:: inferometer.{name}\n   :members:\n   {members}\n\n"


def _toctrees(index: str) -> Iterator[str]:
    """Yields a tree for each heading of the front page, of the pages in the list below it."""
    for section in re.split(r"^## ", index, flags=re.MULTILINE)[1:]:
        heading, _, text = section.partition("\n")
        links = re.findall(r"^- \[([^\]]+)\]\(([^)]+)\.md\)", text, re.MULTILINE)
        pages = "\n".join(f"{title} </{_page(link)}>" for title, link in links)
        yield f"\n```{{toctree}}\n:hidden:\n:caption: {heading}\n\n{pages}\n```\n"


def _page(link: str) -> str:
    return link.removeprefix("../") if link.startswith("../") else f"docs/{link}"


def _complete(app: Sphinx, docname: str, source: list[str]) -> None:
    """Adds to a page what the code host cannot show: the tree of pages, and the reference of the library."""
    if docname == root_doc:
        source[0] += "".join(_toctrees(source[0]))
    source[0] += "".join(_reference(docname))


def _escape(app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """Escapes the end of ``numpy.bool_``, the type of a field, which would be that of a link."""
    lines[:] = [line.replace("numpy.bool_", "numpy.bool\\_") for line in lines]


def setup(app: Sphinx) -> None:
    """Connects the above to Sphinx."""
    app.connect("source-read", _complete)
    app.connect("autodoc-process-docstring", _escape, priority=900)  # after the types are there
