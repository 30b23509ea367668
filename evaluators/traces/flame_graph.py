"""Export of traces as a flame graph: stacks of spans by name, with a width of their time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from html import escape

from inferometer.evaluators.traces.frames import Frame, Spans, frames

WIDTH_PX = 1200
_ROW_PX = 18
_HEAD_PX = 44
_MARGIN_PX = 10
_CHARACTER_PX = 6.6
_WHOLE_PX = WIDTH_PX - 2 * _MARGIN_PX
_LEAST_CHARACTERS = 2
_SMALLEST_PX = 0.01  # zooming in can reveal a frame of this width
_NS_PER_MS = 1e6
_STYLE = ".flame g { cursor: pointer } .flame g:hover rect { stroke: #000000; stroke-width: 0.5 }"
# A click on a frame zooms it to the width of the picture; a click on one of its ancestors zooms out.
_SCRIPT = """
(([WHOLE, MARGIN, CHARACTER, LEAST]) => {
  const svg = document.currentScript.parentNode;
  const note = svg.querySelector(".note");
  const said = note.textContent + "; click a frame to zoom in, Esc to go back";
  const frames = [...svg.querySelectorAll("g")].map(group => {
    const rect = group.querySelector("rect"), title = group.querySelector("title").textContent;
    const name = title.slice(0, title.lastIndexOf(": "));
    const x = +rect.getAttribute("x"), width = +rect.getAttribute("width");
    return {group, rect, title, name, x, width, label: group.querySelector("text")};
  });
  function zoom(x, width) {
    const scale = WHOLE / width, edge = width / 1000;
    for (const frame of frames) {
      const seen = frame.x < x + width - edge && frame.x + frame.width > x + edge;
      frame.group.style.display = seen ? "" : "none";
      if (!seen) continue;
      const left = Math.max(MARGIN, MARGIN + (frame.x - x) * scale);
      const right = Math.min(MARGIN + WHOLE, MARGIN + (frame.x + frame.width - x) * scale);
      frame.rect.setAttribute("x", left);
      frame.rect.setAttribute("width", right - left);
      const room = Math.floor((right - left - 4) / CHARACTER);
      if (!frame.label && room < LEAST) continue;
      if (!frame.label) {
        frame.label = document.createElementNS(svg.namespaceURI, "text");
        frame.label.setAttribute("y", +frame.rect.getAttribute("y") + 12);
        frame.group.append(frame.label);
      }
      const cut = frame.name.length > room;
      frame.label.textContent = room < LEAST ? "" : cut ? frame.name.slice(0, room - 1) + "…" : frame.name;
      frame.label.setAttribute("x", left + 3);
    }
  }
  for (const frame of frames) {
    frame.group.addEventListener("click", () => zoom(frame.x, frame.width));
    frame.group.addEventListener("mouseover", () => { note.textContent = frame.title; });
    frame.group.addEventListener("mouseout", () => { note.textContent = said; });
  }
  document.addEventListener("keydown", event => { if (event.key === "Escape") zoom(MARGIN, WHOLE); });
  note.textContent = said;
})"""


def flame_graph_svg(spans: Spans, title: str) -> str:
    """Returns a flame graph as a self-contained SVG.

    Where scripts run, hovering over a frame shows its figures, and a click zooms in.
    """
    top = frames(spans)
    depth = _depth(top)
    height = _HEAD_PX + max(depth, 1) * _ROW_PX + _MARGIN_PX
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH_PX} {height}" width="{WIDTH_PX}" '
        f'height="{height}" font-family="monospace" font-size="11" class="flame">',
        f"<style>{_STYLE}</style>",
        f'<rect width="{WIDTH_PX}" height="{height}" fill="#ffffff"/>',
        f'<text x="{_MARGIN_PX}" y="18" font-size="14">{escape(title)}</text>',
    ]
    whole_ns = top.width_ns
    if whole_ns:
        note = f"{whole_ns / _NS_PER_MS:.3f} ms in all; a row lies below what called it"
        lines.append(f'<text x="{_MARGIN_PX}" y="34" fill="#555555" class="note">{note}</text>')
        lines += _drawn(top, _MARGIN_PX, 0, _WHOLE_PX / whole_ns, whole_ns)
        sizes = [_WHOLE_PX, _MARGIN_PX, _CHARACTER_PX, _LEAST_CHARACTERS]
        lines.append(f"<script><![CDATA[{_SCRIPT}({sizes});\n]]></script>")
    else:
        lines.append(f'<text x="{_MARGIN_PX}" y="34" fill="#555555">no spans</text>')
    return "\n".join([*lines, "</svg>", ""])


def _drawn(frame: Frame, left_px: float, row: int, scale: float, whole_ns: int) -> Iterator[str]:
    for child in frame.children:
        width_px = child.width_ns * scale
        if width_px >= _SMALLEST_PX:
            yield _box(child, left_px, _HEAD_PX + row * _ROW_PX, width_px, whole_ns)
            yield from _drawn(child, left_px, row + 1, scale, whole_ns)
        left_px += width_px


def _box(frame: Frame, left_px: float, top_px: int, width_px: float, whole_ns: int) -> str:
    room = int((width_px - 4) / _CHARACTER_PX)
    shown = frame.name if len(frame.name) <= room else frame.name[: max(room - 1, 0)] + "…"
    label = (
        f'<text x="{left_px + 3:.2f}" y="{top_px + 12}">{escape(shown)}</text>'
        if room >= _LEAST_CHARACTERS
        else ""
    )
    figures = (
        f"{frame.name}: {frame.total_ns / _NS_PER_MS:.3f} ms in {frame.count} spans, "
        f"{100 * frame.total_ns / whole_ns:.2f} %"
    )
    return (
        f'<g><title>{escape(figures)}</title><rect x="{left_px:.5f}" y="{top_px}" width="{width_px:.5f}" '
        f'height="{_ROW_PX - 1}" rx="1" fill="{_colour(frame.name)}"/>{label}</g>'
    )


def _colour(name: str) -> str:
    """Returns a warm colour, the same for a name in every picture."""
    digest = hashlib.sha256(name.encode("utf-8", "backslashreplace")).digest()
    return f"hsl({20 + digest[0] % 40}, {70 + digest[1] % 25}%, {62 + digest[2] % 14}%)"


def _depth(frame: Frame) -> int:
    return 1 + max(map(_depth, frame.children)) if frame.children else 0
