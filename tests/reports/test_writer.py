"""The writer: three formats, to a stream, a terminal or a file, and the rules of each."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.evaluators.reports.base import Column, Row
from inferometer.evaluators.reports.writer import Format, write
from inferometer.manifests.errors import ConfigurationError, OutputError

COLUMNS = (Column("name", "the name"), Column("value_ms", "value (ms)", decimals=2), Column("ok", "ok"))
ROWS: list[Row] = [
    {"name": "a", "value_ms": 1 / 3, "ok": True},
    {"name": 'b, "c"', "value_ms": None, "ok": False},
]
CSV = 'name,value_ms,ok\na,0.3333333333333333,true\n"b, ""c""",,false\n'
OBJECTS = [{"name": "a", "value_ms": 1 / 3, "ok": True}, {"name": 'b, "c"', "value_ms": None, "ok": False}]
TABLE = 'the name  value (ms)  ok\na               0.33  true\nb, "c"             -  false\n'
TEXT = st.text(st.characters(exclude_categories=["Cs"]))


class Broken(io.StringIO):
    def __init__(self, error: OSError) -> None:
        super().__init__()
        self.error = error

    def write(self, text: str) -> int:
        raise self.error


def to_text(output_format: Format, rows: list[Row] | None = None, *, header: bool = True) -> str:
    stream = io.StringIO()
    write(COLUMNS, ROWS if rows is None else rows, output_format, stream, header=header)
    return stream.getvalue()


class TestFormats:
    def test_csv_has_one_header_line_full_floats_and_quotes_what_needs_it(self) -> None:
        assert to_text(Format.CSV) == CSV

    def test_json_is_an_array_of_objects(self) -> None:
        assert json.loads(to_text(Format.JSON)) == OBJECTS

    def test_a_table_is_aligned_text_with_rounded_floats(self) -> None:
        assert to_text(Format.TABLE) == TABLE

    @pytest.mark.parametrize(
        ("output_format", "expected"),
        [(Format.CSV, CSV.split("\n", 1)[1]), (Format.TABLE, 'a       0.33  true\nb, "c"     -  false\n')],
    )
    def test_without_header_only_the_rows_are_written(self, output_format: Format, expected: str) -> None:
        assert to_text(output_format, header=False) == expected

    def test_json_has_no_header_to_leave_out(self) -> None:
        assert to_text(Format.JSON, header=False) == to_text(Format.JSON)

    @pytest.mark.parametrize(
        ("output_format", "header", "expected"),
        [
            (Format.CSV, True, "name,value_ms,ok\n"),
            (Format.CSV, False, ""),
            (Format.JSON, True, "[]\n"),
            (Format.JSON, False, "[]\n"),
            (Format.TABLE, True, "the name  value (ms)  ok\n"),
            (Format.TABLE, False, ""),
        ],
    )
    def test_no_rows_are_a_valid_output(self, output_format: Format, header: bool, expected: str) -> None:
        assert to_text(output_format, [], header=header) == expected

    def test_the_number_of_rows_is_returned(self, tmp_path: Path) -> None:
        assert write(COLUMNS, iter(ROWS), Format.CSV, io.StringIO()) == 2
        assert write(COLUMNS, iter(ROWS), Format.CSV, tmp_path / "out.csv") == 2
        assert write(COLUMNS, [], Format.TABLE, io.StringIO()) == 0

    def test_a_long_value_is_written_whole(self) -> None:
        name = "x" * 5000

        assert name in to_text(Format.TABLE, [{"name": name, "value_ms": 1.0, "ok": True}])

    def test_wide_characters_keep_a_table_aligned(self) -> None:
        rows: list[Row] = [
            {"name": "模型", "value_ms": 1.0, "ok": True},
            {"name": "abcd", "value_ms": 1.0, "ok": True},
        ]

        first, second = to_text(Format.TABLE, rows, header=False).splitlines()

        assert first.removeprefix("模型") == second.removeprefix("abcd")

    def test_control_characters_do_not_reach_a_table(self) -> None:
        text = to_text(Format.TABLE, [{"name": "a\n\x1b[31mb", "value_ms": 1.0, "ok": True}], header=False)

        assert text == r"a\n\x1b[31mb  1.00  true" + "\n"

    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    def test_a_number_that_json_cannot_say_is_null(self, value: float) -> None:
        text = to_text(Format.JSON, [{"name": "a", "value_ms": value, "ok": True}])

        assert json.loads(text)[0]["value_ms"] is None

    @given(st.lists(st.tuples(TEXT, st.floats(allow_nan=False), st.booleans()), max_size=5))
    def test_csv_and_json_give_back_what_was_written(self, values: list[tuple[str, float, bool]]) -> None:
        rows: list[Row] = [{"name": n, "value_ms": v, "ok": o} for n, v, o in values]

        from_csv = list(csv.DictReader(io.StringIO(to_text(Format.CSV, rows), newline="")))
        from_json = json.loads(to_text(Format.JSON, rows))

        assert [(r["name"], float(r["value_ms"]), r["ok"] == "true") for r in from_csv] == values
        finite = [(n, v if abs(v) != float("inf") else None, o) for n, v, o in values]
        assert [(r["name"], r["value_ms"], r["ok"]) for r in from_json] == finite


class TestStream:
    def test_a_full_disk_is_one_line(self) -> None:
        full = Broken(OSError(errno.ENOSPC, "No space left on device"))

        with pytest.raises(OutputError, match="the output cannot be written: No space left"):
            write(COLUMNS, ROWS, Format.CSV, full)

    def test_a_reader_that_went_away_is_left_to_the_command_line(self) -> None:
        with pytest.raises(BrokenPipeError):
            write(COLUMNS, ROWS, Format.CSV, Broken(BrokenPipeError()))

    def test_an_encoding_that_does_not_fit_is_one_line(self) -> None:
        stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")

        with pytest.raises(
            OutputError, match=r"the output.s encoding, ascii, lacks a character.*PYTHONIOENCODING=utf-8"
        ):
            write(COLUMNS, [{"name": "é", "value_ms": 1.0, "ok": True}], Format.CSV, stream)

    @pytest.mark.parametrize("mode", [{"append": True}, {"overwrite": True}])
    def test_append_and_overwrite_need_a_file(self, mode: dict[str, bool]) -> None:
        with pytest.raises(ConfigurationError, match="are for a file"):
            write(COLUMNS, ROWS, Format.CSV, io.StringIO(), **mode)


@pytest.mark.parametrize("output_format", Format)
class TestFile:
    def test_a_new_file_is_written(self, output_format: Format, tmp_path: Path) -> None:
        write(COLUMNS, ROWS, output_format, tmp_path / "out")

        assert (tmp_path / "out").read_text(encoding="utf-8") == to_text(output_format)
        assert [path.name for path in tmp_path.iterdir()] == ["out"]

    def test_a_file_that_is_there_is_kept(self, output_format: Format, tmp_path: Path) -> None:
        (tmp_path / "out").write_text("precious")

        with pytest.raises(OutputError, match=r"out exists; .*--append.*--overwrite"):
            write(COLUMNS, ROWS, output_format, tmp_path / "out")
        assert (tmp_path / "out").read_text() == "precious"

    @pytest.mark.parametrize("present", [b"old", b"\xff\xfe"])
    def test_overwrite_replaces_it(self, present: bytes, output_format: Format, tmp_path: Path) -> None:
        (tmp_path / "out").write_bytes(present)

        write(COLUMNS, ROWS, output_format, tmp_path / "out", overwrite=True)

        assert (tmp_path / "out").read_text() == to_text(output_format)

    @pytest.mark.parametrize("mode", [{"append": True}, {"overwrite": True}])
    @pytest.mark.parametrize("present", [None, ""])
    def test_append_and_overwrite_make_a_missing_or_empty_file_whole(
        self, mode: dict[str, bool], present: str | None, output_format: Format, tmp_path: Path
    ) -> None:
        if present is not None:
            (tmp_path / "out").write_text(present)

        write(COLUMNS, ROWS, output_format, tmp_path / "out", **mode)

        assert (tmp_path / "out").read_text() == to_text(output_format)

    def test_append_and_overwrite_exclude_each_other(self, output_format: Format, tmp_path: Path) -> None:
        with pytest.raises(ConfigurationError, match="exclude each other"):
            write(COLUMNS, ROWS, output_format, tmp_path / "out", append=True, overwrite=True)
        assert not list(tmp_path.iterdir())

    def test_append_to_a_file_that_is_no_text_is_refused(self, output_format: Format, tmp_path: Path) -> None:
        (tmp_path / "out").write_bytes(b"\xff\xfe")

        with pytest.raises(OutputError, match="is not text in UTF-8"):
            write(COLUMNS, ROWS, output_format, tmp_path / "out", append=True)
        assert (tmp_path / "out").read_bytes() == b"\xff\xfe"

    @pytest.mark.parametrize("mode", [{}, {"append": True}, {"overwrite": True}])
    def test_a_folder_is_refused(self, mode: dict[str, bool], output_format: Format, tmp_path: Path) -> None:
        with pytest.raises(OutputError, match="is a folder; name a file"):
            write(COLUMNS, ROWS, output_format, tmp_path, **mode)

    @pytest.mark.parametrize("mode", [{}, {"append": True}, {"overwrite": True}])
    def test_a_device_is_refused_and_not_replaced(self, mode: dict[str, bool], output_format: Format) -> None:
        with pytest.raises(OutputError, match="is not a regular file"):
            write(COLUMNS, ROWS, output_format, Path(os.devnull), **mode)
        assert stat.S_ISCHR(Path(os.devnull).stat().st_mode)

    @pytest.mark.parametrize("mode", [{}, {"append": True}, {"overwrite": True}])
    def test_a_missing_folder_is_refused(
        self, mode: dict[str, bool], output_format: Format, tmp_path: Path
    ) -> None:
        with pytest.raises(OutputError, match=r"none/out: the folder .*none does not exist"):
            write(COLUMNS, ROWS, output_format, tmp_path / "none" / "out", **mode)

    def test_a_folder_that_is_a_file_is_refused(self, output_format: Format, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")

        with pytest.raises(OutputError, match="cannot be written: Not a directory"):
            write(COLUMNS, ROWS, output_format, tmp_path / "file" / "out")

    def test_a_value_that_is_no_utf8_leaves_nothing_behind(
        self, output_format: Format, tmp_path: Path
    ) -> None:
        rows: list[Row] = [{"name": "\udcff", "value_ms": 1.0, "ok": True}]
        if output_format in (Format.TABLE, Format.MARKDOWN):
            write(COLUMNS, rows, output_format, tmp_path / "out")
            assert r"\udcff" in (tmp_path / "out").read_text()
        else:
            with pytest.raises(OutputError, match="not text in UTF-8"):
                write(COLUMNS, rows, output_format, tmp_path / "out")
            assert not list(tmp_path.iterdir())

    def test_a_write_that_fails_half_way_leaves_the_old_file(
        self, output_format: Format, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "out").write_text("precious")

        def fail(_: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(OutputError, match="out: cannot be written: No space left on device"):
            write(COLUMNS, ROWS, output_format, tmp_path / "out", overwrite=True)
        assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"out": "precious"}

    def test_a_file_that_appears_meanwhile_is_kept(self, output_format: Format, tmp_path: Path) -> None:
        def rows() -> object:
            (tmp_path / "out").write_text("precious")
            yield from ROWS

        with pytest.raises(OutputError, match="exists"):
            write(COLUMNS, rows(), output_format, tmp_path / "out")
        assert (tmp_path / "out").read_text() == "precious"

    def test_a_link_stays_a_link_and_permissions_stay(self, output_format: Format, tmp_path: Path) -> None:
        (tmp_path / "real").write_text("old")
        (tmp_path / "real").chmod(0o640)
        (tmp_path / "out").symlink_to("real")

        write(COLUMNS, ROWS, output_format, tmp_path / "out", overwrite=True)

        assert (tmp_path / "out").is_symlink()
        assert (tmp_path / "real").read_text() == to_text(output_format)
        assert stat.S_IMODE((tmp_path / "real").stat().st_mode) == 0o640

    def test_links_in_a_circle_are_no_stumbling_block(self, output_format: Format, tmp_path: Path) -> None:
        (tmp_path / "out").symlink_to("back")
        (tmp_path / "back").symlink_to("out")

        with pytest.raises(OutputError, match="exists"):
            write(COLUMNS, ROWS, output_format, tmp_path / "out")
        write(COLUMNS, ROWS, output_format, tmp_path / "out", overwrite=True)
        assert (tmp_path / "out").read_text() == to_text(output_format)

    def test_a_new_file_has_the_permissions_of_any_new_file(
        self, output_format: Format, tmp_path: Path
    ) -> None:
        (tmp_path / "other").write_text("")

        write(COLUMNS, ROWS, output_format, tmp_path / "out")

        assert (tmp_path / "out").stat().st_mode == (tmp_path / "other").stat().st_mode


class TestAppend:
    def test_a_csv_gets_no_second_header(self, tmp_path: Path) -> None:
        for _ in range(3):
            write(COLUMNS, ROWS, Format.CSV, tmp_path / "out.csv", append=True)

        assert (tmp_path / "out.csv").read_text() == CSV + 2 * CSV.split("\n", 1)[1]

    @pytest.mark.parametrize(
        "present", ["name,value_ms,ok", "name,value_ms,ok\r\n", "\ufeffname,value_ms,ok\n"]
    )
    def test_a_csv_that_another_program_wrote_stays_readable(self, present: str, tmp_path: Path) -> None:
        (tmp_path / "out.csv").write_bytes(present.encode())

        write(COLUMNS, ROWS, Format.CSV, tmp_path / "out.csv", append=True)

        with (tmp_path / "out.csv").open(newline="", encoding="utf-8-sig") as file:
            assert list(csv.reader(file)) == list(csv.reader(io.StringIO(CSV)))

    @pytest.mark.parametrize("header", [True, False])
    @pytest.mark.parametrize("present", ["other,columns\n1,2\n", "\n", "name,value_ms,ok,more\n", "text"])
    def test_a_csv_with_other_columns_is_refused(self, present: str, header: bool, tmp_path: Path) -> None:
        (tmp_path / "out.csv").write_text(present)

        with pytest.raises(OutputError, match="has other columns than name,value_ms,ok"):
            write(COLUMNS, ROWS, Format.CSV, tmp_path / "out.csv", append=True, header=header)
        assert (tmp_path / "out.csv").read_text() == present

    def test_a_csv_without_header_takes_rows_without_header_only(self, tmp_path: Path) -> None:
        rows = CSV.split("\n", 1)[1]
        for _ in range(2):
            write(COLUMNS, ROWS, Format.CSV, tmp_path / "out.csv", append=True, header=False)

        assert (tmp_path / "out.csv").read_text() == 2 * rows
        with pytest.raises(OutputError, match="has other columns"):
            write(COLUMNS, ROWS, Format.CSV, tmp_path / "out.csv", append=True)

    def test_a_json_array_is_extended(self, tmp_path: Path) -> None:
        (tmp_path / "out.json").write_text('[{"other": "é"}]')

        for _ in range(2):
            write(COLUMNS, ROWS, Format.JSON, tmp_path / "out.json", append=True)

        assert json.loads((tmp_path / "out.json").read_text()) == [{"other": "é"}, *OBJECTS, *OBJECTS]

    @pytest.mark.parametrize("present", ['{"a": 1}', "[1, 2", "text", "[NaN]", "[1e999]", "[" * 100_000])
    def test_a_file_that_is_no_json_array_is_refused(self, present: str, tmp_path: Path) -> None:
        (tmp_path / "out.json").write_text(present)

        with pytest.raises(OutputError, match=r"out\.json: (is not JSON|holds no JSON array)"):
            write(COLUMNS, ROWS, Format.JSON, tmp_path / "out.json", append=True)
        assert (tmp_path / "out.json").read_text() == present

    def test_a_table_goes_below_what_is_there(self, tmp_path: Path) -> None:
        (tmp_path / "out.txt").write_text("above")

        write(COLUMNS, ROWS, Format.TABLE, tmp_path / "out.txt", append=True)

        assert (tmp_path / "out.txt").read_text() == "above\n" + TABLE

    def test_appending_no_rows_changes_nothing(self, tmp_path: Path) -> None:
        write(COLUMNS, ROWS, Format.CSV, tmp_path / "out.csv")

        write(COLUMNS, [], Format.CSV, tmp_path / "out.csv", append=True)

        assert (tmp_path / "out.csv").read_text() == CSV
