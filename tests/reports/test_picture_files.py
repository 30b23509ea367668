"""Plots as files: each format is self-contained, reproducible, and accepts any name."""

from __future__ import annotations

import importlib
import re
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from datetime import datetime, timezone
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from inferometer.evaluators.drawing import canvas, traces
from inferometer.evaluators.drawing.charts import (
    Bar,
    BarChart,
    BarRow,
    Box,
    BoxChart,
    Drawing,
    Label,
    PointChart,
    Timeline,
)
from inferometer.evaluators.drawing.writer import MOST_ROWS, PictureFile, page
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.registry import find_report
from inferometer.evaluators.reports.base import Column, Row
from inferometer.manifests.errors import ConfigurationError, OutputError
from tests.reports.pictures import (
    HOSTILE,
    LOADS,
    REPORTS,
    SHALLOW,
    SVG,
    drawn,
    picture,
    renamed,
    rows_of,
    texts,
    titles,
    traced,
)

NOW = datetime(2026, 3, 4, 5, 6, 7, tzinfo=timezone.utc)


@pytest.mark.parametrize("name", REPORTS)
def test_an_svg_has_a_mark_with_a_tooltip_for_everything_drawn(
    name: str, given: dict[str, list[Evaluation]]
) -> None:
    drawing = picture(name, given[name])
    expected = []
    for chart in drawing.charts:
        match chart:
            case BarChart():
                expected += [bar.tooltip for row in chart.rows for bar in row.bars]
            case BoxChart():
                expected += [box.tooltip for box in chart.boxes]
            case PointChart():
                expected += [series.tooltip for series in chart.series]
            case Timeline():
                expected += [bar.tooltip for bar in chart.bars]

    svg = canvas.svg(drawing)

    assert sorted(titles(svg)) == sorted(tooltip for tooltip in expected if tooltip)
    assert drawing.title in texts(svg)
    assert set(re.findall(r"https?://[^\s\"'<>]+", svg)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    assert all(link.startswith("#") for link in re.findall(r'href="([^"]*)"', svg))


@pytest.mark.parametrize("name", REPORTS)
def test_names_that_mean_something_elsewhere_are_shown_as_they_are_and_always_in_the_same_bytes(
    name: str, given: dict[str, list[Evaluation]]
) -> None:
    hostile = _hostile(name, given)

    drawing, again = (picture(name, hostile) for _ in range(2))
    svg = canvas.svg(drawing)

    shown = " ".join((*texts(svg), *titles(svg)))
    assert "<b>&amp;" in shown
    assert "$" in shown
    assert "\\x00\\n\\u202e" in shown or "\\n\\u202e" in shown
    assert drawing == again
    assert svg == canvas.svg(again)


PAINTED = {"latency": BoxChart, "cuda_launch": BarChart, "eventflow": Timeline, "training_steps": PointChart}
"""A report for each kind of chart: from the figure on, a PNG is Matplotlib's, and takes longer."""


@pytest.mark.parametrize("name", PAINTED)
def test_such_names_are_painted_and_always_in_the_same_bytes(
    name: str, given: dict[str, list[Evaluation]]
) -> None:
    drawing, again = (picture(name, _hostile(name, given)) for _ in range(2))

    png = canvas.png(drawing)

    assert {type(chart) for chart in drawing.charts} == {PAINTED[name]}
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    assert b"Matplotlib" not in png
    assert png == canvas.png(again)


def _hostile(name: str, given: dict[str, list[Evaluation]]) -> list[Evaluation]:
    """What a report draws, of models and layers with the name."""
    hostile = [renamed(evaluation, HOSTILE) for evaluation in given[name]]
    if name in (*SHALLOW, *LOADS):
        return hostile
    return [traced(evaluation, HOSTILE) for evaluation in hostile]


def test_texts_beside_each_other_do_not_overlap(given: dict[str, list[Evaluation]]) -> None:
    """Of the names of layers, each is below the one before by more than its size."""
    svg = ElementTree.fromstring(canvas.svg(picture("layers", given["layers"][:1])))
    names = [e for e in svg.iter(f"{SVG}text") if re.match(r"\d+  layer\d+$", e.text or "")]

    places = sorted(float(e.get("y", "0")) for e in names)

    assert len(places) == traces.MOST_BARS
    assert all(after - before > 12 for before, after in pairwise(places))


def test_values_of_zero_and_of_very_different_size_are_drawn() -> None:
    nothing = BarChart(Label("x"), "y", (BarRow(Label("a"), (Bar(0),)), BarRow(Label("b"), (Bar(0), Bar(0)))))
    box = Box(Label("a"), 0, 0, 0, 0, 0, 0)
    far = replace(box, low=1e3, first=1e3, middle=1e4, third=1e5, high=1e6, mark=5.0)
    near = replace(box, low=1e-6, first=1e-6, middle=1e-3, third=1e-2, high=0.1, mark=0.1)
    chart = BoxChart(Label(""), "ms", (far, near))

    for charts in (
        (nothing,),
        (BoxChart(Label(""), "ms", (box,)),),
        (BoxChart(Label(""), "ms", (box, far)),),
    ):
        assert canvas.png(Drawing("t", charts))
    assert "ms, logarithmic" in texts(canvas.svg(Drawing("t", (chart,))))


class _Page(HTMLParser):
    """Notes the elements of a page, and that they are closed in order."""

    VOID = ("meta", "path", "use")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[str] = []
        self.links: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.links += [value or "" for key, value in attributes if key in ("src", "href", "xlink:href")]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("name", REPORTS)
def test_a_page_holds_the_picture_and_its_rows_and_asks_for_nothing(
    name: str, given: dict[str, list[Evaluation]], tmp_path: Path
) -> None:
    evaluations = [renamed(evaluation, HOSTILE) for evaluation in given[name]]
    rows = rows_of(name, evaluations)
    path = tmp_path / "page.html"

    assert PictureFile(path).write(find_report(name), drawn(name, evaluations), rows, NOW)

    text = path.read_text(encoding="utf-8")
    parsed = _Page()
    parsed.feed(text)
    parsed.close()
    assert text.startswith("<!DOCTYPE html>\n<html lang=")
    assert parsed.open == []
    assert parsed.elements.count("svg") == 1
    assert not {"script", "link", "img", "iframe", "b"} & set(parsed.elements)
    assert all(link.startswith("#") for link in parsed.links)
    assert not re.search(r"url\((?!#)|@import", text)
    assert parsed.elements.count("tr") == 1 + len(rows)
    assert "drawn 2026-03-04 05:06:07+00:00" in parsed.text
    assert find_report(name).columns[-1].header in parsed.text


def test_the_table_of_a_page_is_bounded_and_says_so() -> None:
    columns = (Column("a", "a <heading>"), Column("b", "b", decimals=1))
    rows: list[Row] = [{"a": n, "b": 0.25} for n in range(MOST_ROWS + 1)]

    text = page("t", "<svg></svg>", columns, rows, "s", NOW)

    assert f"The first {MOST_ROWS:,} of {MOST_ROWS + 1:,} rows." in text
    assert text.count("<tr>") == MOST_ROWS + 1
    assert "a &lt;heading&gt;" in text
    assert '<td class="number" title="0.25">0.2</td>' in text


def test_a_png_has_the_size_of_the_svg(shallow: list[Evaluation]) -> None:
    drawing = picture("latency", shallow)

    png, svg = canvas.png(drawing), ElementTree.fromstring(canvas.svg(drawing))

    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = (int.from_bytes(png[place : place + 4], "big") for place in (16, 20))
    points = [float(svg.get(key, "").removesuffix("pt")) for key in ("width", "height")]
    assert [width, height] == pytest.approx([value / 72 * 120 for value in points], abs=1)
    assert 1000 < width < 2000


def test_drawing_leaves_the_settings_of_matplotlib_as_they_are(shallow: list[Evaluation]) -> None:
    import matplotlib as mpl

    def settings() -> dict[str, object]:  # asking for the backend would start one
        return {str(key): mpl.rcParams[key] for key in mpl.rcParams if key != "backend"}

    mpl.rcParams["font.size"] = 31
    try:
        before = settings()
        changed = canvas.svg(picture("latency", shallow))
        assert settings() == before
    finally:
        mpl.rcParams["font.size"] = mpl.rcParamsDefault["font.size"]
    assert canvas.svg(picture("latency", shallow)) == changed


def test_a_file_is_written_whole_or_not_at_all(shallow: list[Evaluation], tmp_path: Path) -> None:
    report, rows, drawing = find_report("accuracy"), rows_of("accuracy", shallow), drawn("accuracy", shallow)
    path = tmp_path / "a.PNG"

    late = PictureFile(path)
    assert PictureFile(path).write(report, drawing, rows, NOW)
    png = path.read_bytes()
    with pytest.raises(OutputError, match=r"exists; overwrite it \(--overwrite\), or name another file"):
        PictureFile(path)
    with pytest.raises(OutputError, match="exists; overwrite it"):
        late.write(report, drawing, rows, NOW)
    assert PictureFile(path, overwrite=True).write(report, drawn("accuracy", shallow[:1]), rows, NOW)
    assert path.read_bytes() != png
    assert list(tmp_path.iterdir()) == [path]
    assert not PictureFile(tmp_path / "b.svg").write(report, drawn("accuracy", []), [], NOW)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["a.pdf", "a", "a.svg.gz", ".svg"])
def test_an_unknown_ending_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"allowed: \.html, \.svg, \.png"):
        PictureFile(tmp_path / name)


def test_without_matplotlib_it_is_said_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # by name: another test may have put another module in the place of the package's attribute
    package = importlib.import_module("inferometer.evaluators.drawing")
    for name in ("canvas", "painting"):
        monkeypatch.delitem(sys.modules, f"inferometer.evaluators.drawing.{name}", raising=False)
        monkeypatch.delattr(package, name, raising=False)  # which is there once it was imported
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    with pytest.raises(ConfigurationError, match=r'pip install "inferometer\[plot\]"') as raised:
        PictureFile(tmp_path / "a.svg")
    assert "\n" not in str(raised.value)
