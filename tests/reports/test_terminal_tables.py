"""Tables on a terminal: they fit it, with what tells most first."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from inferometer.evaluators.reports.base import Column, Row
from inferometer.evaluators.reports.table import folded
from inferometer.evaluators.reports.writer import Format, write
from tests.reports.test_writer import COLUMNS, CSV, ROWS, TABLE, to_text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class TestTerminal:
    @pytest.fixture(autouse=True)
    def environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.delenv("NO_COLOR", raising=False)

    def shown(self, monkeypatch: pytest.MonkeyPatch, width: int, *, header: bool = True) -> str:
        monkeypatch.setenv("COLUMNS", str(width))
        terminal = Terminal()
        write(COLUMNS, ROWS, Format.TABLE, terminal, header=header)
        return terminal.getvalue()

    def test_a_wide_one_shows_the_table_with_a_bold_header(self, monkeypatch: pytest.MonkeyPatch) -> None:
        text = self.shown(monkeypatch, 80)

        bold, plain = "\x1b[1m", "\x1b[0m"
        first, rest = TABLE.split("\n", 1)
        assert text == f"{bold}{first}{plain}\n{rest}"

    def fitted(
        self, monkeypatch: pytest.MonkeyPatch, width: int, columns: Sequence[Column], rows: Sequence[Row]
    ) -> list[str]:
        """The lines of a table on a terminal, none of which is wider than it."""
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setenv("NO_COLOR", "1")
        terminal = Terminal()
        write(columns, rows, Format.TABLE, terminal)
        lines = terminal.getvalue().replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines()
        assert max(map(len, lines)) <= width
        return lines

    def test_a_narrow_one_names_the_columns_that_it_has_no_room_for(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert self.fitted(monkeypatch, 14, COLUMNS, ROWS) == [
            "the     value",
            "name     (ms)",
            "a        0.33",
            'b, "c"      -',
            "not shown, but",
            "in csv and",
            "json: ok",
        ]

    def test_many_columns_without_room_are_counted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        columns = [Column(f"column_{n}", f"column{n:02}") for n in range(40)]
        rows = [{column.key: n + m for m, column in enumerate(columns)} for n in range(2)]

        lines = self.fitted(monkeypatch, 40, columns, rows)

        assert lines[0] == "column00  column01  column02  column03"
        assert lines[-2:] == ["not shown, but in csv and json:", "column04, column05, column06 and 33 more"]

    def test_a_column_that_is_too_wide_alone_is_cut(self, monkeypatch: pytest.MonkeyPatch) -> None:
        columns = (Column("text", "text"),)
        rows = [{"text": "x" * 36}, {"text": "short"}]

        assert self.fitted(monkeypatch, 12, columns, rows) == ["text", "xxxxxxxxxxx…", "short"]

    def test_a_narrow_one_shows_what_is_the_same_once_and_ids_by_their_beginning(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        columns = (
            Column("created_at", "created at", detail=True),
            Column("id", "id", is_id=True),
            Column("model", "model"),
            Column("p50", "p50 (ms)"),
            Column("text", "text", detail=True),
        )
        ids = ("574e64be-4ff6-4e3a-9af4-c3e53e2aa3c1", "354964b3-4ff6-4e3a-9af4-c3e53e2aa3c1")
        same = {"created_at": "2026-11-22", "model": "DigitsCNN"}
        rows = [{**same, "id": ids[0], "p50": 1.25, "text": "stable"}]
        rows.append({**same, "id": ids[1], "p50": 12.5, "text": "disturbed: the host took 8.1 % of the CPU"})

        assert self.fitted(monkeypatch, 50, columns, rows) == [
            "model: DigitsCNN  created at: 2026-11-22",
            "             p50",
            "id          (ms)  text",
            "574e64be   1.250  stable",
            "354964b3  12.500  disturbed: the host took 8.1 % …",
        ]
        assert self.fitted(monkeypatch, 24, columns, rows[:1]) == [
            "created at: 2026-11-22",
            "text: stable",
            "id        model",
            "574e64be  DigitsCNN",
            "not shown, but in csv",
            "and json: p50 (ms)",
        ]
        twins = [{**row, "id": f"574e64be-{number}{row['id'][10:]}"} for number, row in enumerate(rows)]
        assert [line.split(" ")[0] for line in self.fitted(monkeypatch, 60, columns, twins)[3:5]] == [
            row["id"] for row in twins
        ]

    def test_columns_that_tell_little_come_last_and_times_are_shown_to_the_minute(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        columns = (
            Column("host", "host", detail=2),
            Column("created_at", "created at", detail=1, is_time=True),
            Column("top1", "top-1", stays=True),
        )
        rows = [
            {
                "host": f"machine-with-a-long-name-{n}",
                "created_at": f"2026-11-22T10:0{n}:30.123+00:00",
                "top1": 1,
            }
            for n in range(2)
        ]

        assert self.fitted(monkeypatch, 40, columns, rows) == [
            "top-1  created at",
            "    1  2026-11-22 10:00",
            "    1  2026-11-22 10:01",
            "not shown, but in csv and json: host",
        ]

    def test_a_text_that_wraps_goes_on_in_further_lines(self, monkeypatch: pytest.MonkeyPatch) -> None:
        columns = (Column("name", "name"), Column("why", "why", least=10, wraps=True))
        rows = [{"name": "a", "why": "the machine was far too busy"}, {"name": "b", "why": "x" * 25}]

        assert self.fitted(monkeypatch, 22, columns, rows) == [
            "name  why",
            "a     the machine was",
            "      far too busy",
            f"b     {'x' * 16}",
            f"      {'x' * 9}",
        ]

    def test_columns_that_were_chosen_are_all_shown(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", "24")
        monkeypatch.setenv("NO_COLOR", "1")
        columns = (Column("same", "same"), Column("text", "text", detail=1), Column("n", "a number"))
        rows = [{"same": "x", "text": "y" * 30, "n": 10**12 + n} for n in range(2)]
        terminal = Terminal()

        write(columns, rows, Format.TABLE, terminal, every_column=True)

        text = terminal.getvalue().replace("\x1b[1m", "").replace("\x1b[0m", "")
        assert text.splitlines() == [
            "same  text                       a number",
            f"x     {'y' * 19}…  1000000000000",
            f"x     {'y' * 19}…  1000000000001",
        ]

    def test_without_header_a_narrow_one_gets_the_lines(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.shown(monkeypatch, 10, header=False) == to_text(Format.TABLE, header=False)

    def test_csv_is_the_same_as_anywhere(self) -> None:
        terminal = Terminal()
        write(COLUMNS, ROWS, Format.CSV, terminal)

        assert terminal.getvalue() == CSV


class TestFoldedText:
    @given(st.lists(st.text("ab模", min_size=1, max_size=12), max_size=8), st.integers(2, 30))
    def test_no_line_is_too_wide_and_no_word_is_lost(self, words: list[str], wide: int) -> None:
        lines = folded("  ".join(words), wide)

        assert max(map(cell_len, lines)) <= wide
        assert "".join("".join(lines).split()) == "".join(words)

    def test_it_is_split_where_there_are_two_blanks_first(self) -> None:
        assert folded("mean 6.2 [6.1, 6.3]  p50 6.2", 26) == ["mean 6.2 [6.1, 6.3]", "p50 6.2"]
        assert folded("one two three", 8) == ["one two", "three"]
