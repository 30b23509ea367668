"""Reports and exports of a long trace use no more memory than those of a shorter one."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from inferometer.agent.tracing.recorder import SpanChunk, SpanKind, TraceLevel
from inferometer.evaluators.evaluation import Evaluation, TraceSummary
from inferometer.evaluators.kinds.reports import EventflowReport
from inferometer.evaluators.reports.base import Column, Row
from inferometer.evaluators.reports.writer import Format, write
from inferometer.evaluators.store.evaluation_store import EvaluationStore
from inferometer.evaluators.store.sqlite import connect_sqlite
from inferometer.evaluators.traces.export import chrome_trace, flame_graph_svg, otlp_json
from inferometer.evaluators.traces.layers import layers
from inferometer.manifests.errors import OutputError
from tests.contract.store_fixtures import make_evaluation

SPANS = 300
"""Spans in a chunk: one predict step and its layers."""
ROWS = 400
"""Rows for each chunk, of 500 bytes each."""
FEW, MANY = 5, 15
"""Chunks: to keep all of them takes three times as much of many."""
GROWTH = 1.5
KINDS = (
    SpanKind.of("predict", TraceLevel.MODEL_TRACE),
    *(
        SpanKind.of(f"conv{n}", TraceLevel.FRAMEWORK_TRACE, layer_index=n, input_shapes=("8x64x56x56",))
        for n in range(20)
    ),
)
COLUMNS = (Column("name", "name"), Column("value", "value"), Column("text", "text"))


class Nowhere:
    """A stream that forgets."""

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None: ...

    def isatty(self) -> bool:
        return False


class Terminal(Nowhere):
    """The same, with a person before it."""

    def isatty(self) -> bool:
        return True


def chunks(count: int) -> Iterator[SpanChunk]:
    for batch in range(count):
        place = np.arange(SPANS)
        kind = np.where(place == 0, 0, 1 + place % 20)
        first = 1 + batch * SPANS
        yield SpanChunk(
            KINDS,
            kind,
            span_id=first + place,
            parent_id=np.where(place == 0, 0, first),
            start_ns=10**18 + (first + place) * 1000,
            duration_ns=np.where(place == 0, SPANS * 1000, 900),
            batch=np.full(SPANS, batch),
            thread=np.zeros(SPANS, np.int64),
        )


def rows(chunk_count: int) -> Iterator[Row]:
    for number in range(chunk_count * ROWS):
        yield {"name": f"row {number}", "value": number / 7, "text": "x" * (500 + number % 50)}


def peak_bytes(action: Callable[[int], object], size: int) -> int:
    """What an action takes at the most, besides what was there before."""
    action(1)  # imports, caches
    tracemalloc.start()
    try:
        action(size)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def assert_bounded(action: Callable[[int], object], sizes: tuple[int, int] = (FEW, MANY)) -> None:
    few, many = (peak_bytes(action, size) for size in sizes)
    assert many <= GROWTH * few, f"{few} bytes became {many}"


@pytest.mark.parametrize("output_format", Format)
def test_rows_are_not_kept_while_they_are_written(output_format: Format, tmp_path: Path) -> None:
    path = tmp_path / "out"

    assert_bounded(lambda size: write(COLUMNS, rows(size), output_format, path, overwrite=True))

    assert path.stat().st_size > MANY * ROWS * 500


@pytest.mark.parametrize("columns", ["1000", "80"])
def test_rows_are_not_kept_while_a_terminal_shows_them(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)

    assert_bounded(lambda size: write(COLUMNS, rows(size), Format.TABLE, Terminal()))


def test_a_table_of_many_rows_is_whole(tmp_path: Path) -> None:
    write(COLUMNS, rows(5), Format.TABLE, tmp_path / "out")

    lines = (tmp_path / "out").read_text().splitlines()
    expected = [f"row {n:<4}  {n / 7:>7.3f}  {'x' * (500 + n % 50)}" for n in range(5 * ROWS)]
    assert lines == ["name        value  text", *expected]


def test_no_room_for_a_large_table_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    write(COLUMNS, rows(1), Format.TABLE, tmp_path / "small")

    with pytest.raises(OutputError, match=r"temporary file, which fails: No such file.*TMPDIR") as caught:
        write(COLUMNS, rows(20), Format.TABLE, tmp_path / "large")

    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["small"]


def test_eventflow_keeps_one_chunk() -> None:
    evaluation = make_evaluation()
    report = EventflowReport()

    def written(size: int) -> int:
        return write(report.columns, report.rows_of_one(evaluation, chunks(size)), Format.CSV, Nowhere())

    assert written(3) == 3 * SPANS
    assert_bounded(written)


@pytest.mark.parametrize(
    "pieces", [lambda size: chrome_trace(chunks(size), "a"), lambda size: otlp_json(chunks(size), "ab", {})]
)
def test_an_exported_trace_keeps_one_chunk(pieces: Callable[[int], Iterator[str]]) -> None:
    assert_bounded(lambda size: sum(map(len, pieces(size))))


def test_a_flame_graph_keeps_only_spans_with_others_below_them() -> None:
    assert_bounded(lambda size: flame_graph_svg(lambda: chunks(size), "a"))


def test_layers_keep_eight_bytes_a_span() -> None:
    few, many = (peak_bytes(lambda size: layers(chunks(size)), size) for size in (100, 400))

    assert (many - few) / (300 * SPANS) < 10


def test_saving_makes_few_documents_at_a_time(tmp_path: Path) -> None:
    def traced(size: int) -> Evaluation:
        kept = tuple(chunks(size))
        return make_evaluation(trace=TraceSummary("ab" * 16, size * SPANS), spans=kept)

    whole = (MANY, 3 * MANY)  # FEW do not fill what is written at once
    evaluations = {size: traced(size) for size in (1, *whole)}
    store = EvaluationStore(connect_sqlite(tmp_path / "store.sqlite"))
    try:
        assert_bounded(lambda size: store.save(evaluations[size]), whole)
        assert sum(map(len, store.spans(evaluations[MANY].id))) == MANY * SPANS
    finally:
        store.close()
