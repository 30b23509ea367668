"""The static files of the page: as a server gives them out, and put together into one file."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable
from importlib import resources
from string import Template
from types import MappingProxyType

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
"""The files that a server gives out; there is no way to any other."""
_IMPORT = re.compile(r"^import \{[^}]*\} from \"\./[\w.]+\";\n", re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?function |const |class |let )", re.MULTILINE)


def content_of(name: str) -> bytes:
    """Returns a static file."""
    return (resources.files("inferometer.client.web") / _FOLDER / name).read_bytes()


def content_type_of(name: str) -> str:
    """Returns the type of a static file, as HTTP names it."""
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
    """Returns the page in one file, which loads nothing, with its content.

    Its policy names the one script and the one style that are in it, by their checksums.

    Args:
        parts: The name of each part of the content, and its text in base64.
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
    """Returns the page's modules as one: browsers load none from files. No two of them share a name."""
    texts = (content_of(name).decode("utf-8") for name in MODULES)
    return "\n".join(_EXPORT.sub("", _IMPORT.sub("", text)) for text in texts)


def _filled(**parts: str) -> str:
    return Template(content_of("page.html").decode("utf-8")).substitute(parts)


def _checksum(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode('ascii')}"
