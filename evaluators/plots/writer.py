"""The one writer of pictures: a report's rows, drawn into an SVG, PNG or HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import Enum
from pathlib import Path

from evaluators.evaluation import Evaluation
from evaluators.plots.drawing import Drawing
from evaluators.plots.registry import find_plot
from evaluators.reports.base import Report, Row
from evaluators.reports.output_file import OutputFile
from manifests.errors import ConfigurationError, OutputError


class PictureFormat(str, Enum):
    """What a picture is written as."""

    HTML = "html"
    SVG = "svg"
    PNG = "png"


class PictureFile:
    """A file that a picture goes to. All that can be refused is refused when it is made.

    Args:
        path: Where; its ending tells the format.
        overwrite: Whether a file that is there is replaced.

    Raises:
        ConfigurationError: The ending is of no format, or Matplotlib is not installed.
        OutputError: The file is there and is not to be replaced, or cannot be written.
    """

    def __init__(self, path: Path, *, overwrite: bool = False) -> None:
        self._format = _format_of(path)
        self._file = OutputFile(path, appendable=False)
        self._overwrite = overwrite
        if self._file.exists() and not overwrite:
            raise self._file.in_the_way()
        if not path.parent.is_dir():
            raise OutputError(f"{path}: the folder {path.parent} does not exist")
        try:
            from evaluators.plots import canvas  # noqa: F401 - whether it can be had
        except ImportError as error:
            reason = " ".join(str(error).split())
            raise ConfigurationError(
                f"a picture needs Matplotlib, which cannot be imported ({reason}); "
                'install it with: pip install "inferscope[plot]"'
            ) from error
        except ValueError as error:  # an environment variable of Matplotlib's that it does not take
            reason = " ".join(str(error).split())
            raise ConfigurationError(f"Matplotlib, which draws pictures, does not start: {reason}") from error

    def __str__(self) -> str:
        return str(self._file)

    def write(
        self, report: Report, evaluations: Sequence[Evaluation], rows: Sequence[Row], drawn_at: datetime
    ) -> bool:
        """Draws the rows of a report, and writes the picture in one step.

        Args:
            report: What the rows are of.
            evaluations: What was reported on.
            rows: The report's rows, all of them.
            drawn_at: The time that a page states; SVG and PNG hold none.

        Returns:
            Whether there was anything to draw; else no file is written.

        Raises:
            ConfigurationError: The report has no picture.
            OutputError: The file cannot be written.
        """
        drawing = find_plot(report.name).draw(evaluations, rows)
        if drawing is None:
            return False
        content = _content(drawing, self._format, report, rows, drawn_at)
        if self._overwrite:
            self._file.replace(content)
        else:
            self._file.create(content)
        return True


def _format_of(path: Path) -> PictureFormat:
    try:
        return PictureFormat(path.suffix.removeprefix(".").lower())
    except ValueError as error:
        endings = ", ".join(f".{known.value}" for known in PictureFormat)
        found = f'ends in "{path.suffix}"' if path.suffix else "has no ending"
        raise ConfigurationError(f'the picture "{path}" {found}; allowed: {endings}') from error


def _content(
    drawing: Drawing, picture_format: PictureFormat, report: Report, rows: Sequence[Row], drawn_at: datetime
) -> str | bytes:
    from evaluators.plots.canvas import png, svg  # only what draws needs Matplotlib

    match picture_format:
        case PictureFormat.PNG:
            return png(drawing)
        case PictureFormat.SVG:
            return svg(drawing)
    from evaluators.plots.page import page

    source = f"Report {report.name} of inferscope: {report.summary}"
    return page(drawing.title, svg(drawing), report.columns, rows, source, drawn_at)
