"""The page: its static files, as a server sends them, and the one file that ``agent report`` writes.

That file contains the requested evaluations.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from importlib import resources
from itertools import permutations
from string import Template
from types import MappingProxyType
from typing import Any

from inferometer.client.web.documents import (
    comparison_document,
    evaluation_document,
    overview_columns,
    overview_rows,
    page_reports,
    sort_key,
)
from inferometer.evaluators.comparing.comparison import Side
from inferometer.evaluators.evaluation import Evaluation, SpanSource
from inferometer.manifests.errors import ConfigurationError

_FOLDER = "static"
_TYPES = MappingProxyType(
    {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml", "txt": "text/plain"}
)
MODULES = (
    "dom.js",
    "tables.js",
    "transport.js",
    "charts.js",
    "list.js",
    "evaluation.js",
    "comparison.js",
    "plans.js",
    "plan.js",
    "main.js",
)
"""The page's own modules; each imports only from those before it."""
STYLES = ("uPlot.min.css", "page.css")
_PLOT_LIBRARY = "uPlot.iife.min.js"
SERVED = (*MODULES, *STYLES, _PLOT_LIBRARY, "icon.svg", "uPlot.LICENSE.txt")
"""The files that a server sends; it sends no others."""
_IMPORT = re.compile(r"^import \{[^}]*\} from \"\./[\w.]+\";\n", re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?function |const |class |let )", re.MULTILINE)


def content_of(name: str) -> bytes:
    """Returns a static file."""
    return (resources.files("inferometer.client.web") / _FOLDER / name).read_bytes()


def content_type_of(name: str) -> str:
    """Returns the media type of a static file."""
    return f"{_TYPES[name.rpartition('.')[2]]}; charset=utf-8"


def served_page() -> bytes:
    """Returns the page that loads the other files from its server."""
    styles = (f'<link rel="stylesheet" href="/static/{name}">' for name in STYLES)
    head = [
        '<link rel="icon" href="/static/icon.svg" type="image/svg+xml">',
        *styles,
        f'<script src="/static/{_PLOT_LIBRARY}" defer></script>',
        '<script src="/static/main.js" type="module"></script>',
    ]
    return _filled(policy="", head="".join(f"{line}\n" for line in head), body="").encode("utf-8")


def whole_page(parts: Iterable[tuple[str, str]]) -> str:
    """Returns the page with its content as one file, which loads nothing else.

    Its security policy names its only script and style by their checksums.
    """
    style = "\n".join(content_of(name).decode("utf-8") for name in STYLES)
    script = f"{content_of(_PLOT_LIBRARY).decode('utf-8')}\n{in_one_script()}"
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src '{_checksum(script)}'",
            f"style-src '{_checksum(style)}'",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    blocks = (f'<script type="text/plain" id="part-{name}">{text}</script>\n' for name, text in parts)
    return _filled(
        policy=f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n',
        head=f"<style>{style}</style>\n",
        body=f'{"".join(blocks)}<script type="module">{script}</script>\n',
    )


def in_one_script() -> str:
    """Returns the modules as one script, as browsers load none from files; all top-level names differ."""
    texts = (content_of(name).decode("utf-8") for name in MODULES)
    return "\n".join(_EXPORT.sub("", _IMPORT.sub("", text)) for text in texts)


def _filled(**parts: str) -> str:
    return Template(content_of("page.html").decode("utf-8")).substitute(parts)


def _checksum(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode('ascii')}"


_PER_PART = 50
_OMITTED = (
    "This report has times, layers and pictures of its newest {details} evaluations only. "
    "For this evaluation, run: agent report -o {id:.8}.html --id={id}"
)
_FILTERS = ("model_name", "framework_name", "batch_size", "hostname", "kind", "stability")


def report_text(
    evaluations: Sequence[Evaluation],
    spans: SpanSource,
    *,
    source: str,
    made_at: datetime,
    details: int,
    compared: int,
    left_out: Sequence[str] = (),
) -> str:
    """Returns the page as the text of one HTML file.

    The newest ``details`` evaluations, which come first, get layers and pictures with the times of all
    batches, and the newest ``compared`` are compared with each other. ``left_out`` says why evaluations could
    not be read.
    """
    shared = _Shared()
    rows = list(overview_rows(evaluations))
    about = {"source": source, "as_of": f"as of {made_at:%Y-%m-%d %H:%M} UTC"}
    overview = {
        "columns": overview_columns(),
        "rows": rows,
        "total": len(rows),
        "unreadable": list(left_out),
        "filters": _filters(rows),
        "about": about,
        "details_per_part": _PER_PART,
    }
    parts: list[tuple[str, Any]] = [("list", overview)]
    parts += _details(evaluations, spans, details, shared)
    parts += [("comparisons", dict(_comparisons(evaluations[:compared]))), ("shared", shared.values)]
    return whole_page((name, _packed(content)) for name, content in parts)


class _Shared:
    """A table of the values that several evaluations share, such as the facts about one machine."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._places: dict[str, int] = {}

    def reference(self, value: Any) -> dict[str, int]:
        """Returns the reference that replaces a value."""
        text = json.dumps(value)
        if text not in self._places:
            self._places[text] = len(self.values)
            self.values.append(value)
        return {"$": self._places[text]}

    def shortened(self, document: dict[str, Any]) -> dict[str, Any]:
        """Returns a document with references in place of its manifest and of each section of facts."""
        facts = [self.reference(section) for section in document["facts"]]
        return document | {"facts": facts, "manifest": self.reference(document["manifest"])}


def _details(
    evaluations: Sequence[Evaluation], spans: SpanSource, details: int, shared: _Shared
) -> Iterator[tuple[str, Any]]:
    reports = page_reports()
    groups: dict[str, list[Evaluation]] = {}
    for each in evaluations:
        if each.group_id is not None:
            groups.setdefault(each.group_id, []).append(each)
    for start in range(0, len(evaluations), _PER_PART):
        part = {}
        for place, each in enumerate(evaluations[start : start + _PER_PART], start=start):
            others = [other for other in groups.get(each.group_id or "", ()) if other is not each]
            others.sort(key=lambda other: other.trace_level)
            omitted = "" if place < details else _OMITTED.format(details=details, id=each.id)
            document = evaluation_document(each, others, reports, None if omitted else spans, omitted)
            part[each.id] = shared.shortened(document)
        yield f"details-{start // _PER_PART}", part


def _comparisons(evaluations: Sequence[Evaluation]) -> Iterator[tuple[str, Any]]:
    """Yields the comparison of every pair, in both directions."""
    for one, other in permutations(evaluations, 2):
        key = f"{one.id} {other.id}"
        try:
            yield key, comparison_document(Side("A", (one,)), Side("B", (other,)))
        except ConfigurationError as error:
            command = f"agent compare {one.id} {other.id}"
            sides = {name: {"given": each.id} for name, each in (("a", one), ("b", other))}
            yield key, {**sides, "command": command, "error": str(error)}


def _filters(rows: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Returns the values that each filter offers, by the key of its column."""
    places = {column["key"]: place for place, column in enumerate(overview_columns())}
    found = {name: {row["values"][places[name]] for row in rows} - {None} for name in _FILTERS}
    return {name: sorted(values, key=sort_key) for name, values in found.items()}


def _packed(content: Any) -> str:
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode("utf-8"), mtime=0)).decode("ascii")
