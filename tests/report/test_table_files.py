# SPDX-License-Identifier: Apache-2.0
"""Tables on disk: what is in the files, and what happens to files that are there."""

from __future__ import annotations

import csv
import logging
import math
import string
import zipfile
from pathlib import Path
from xml.etree import ElementTree

import polars as pl
import pytest
import python_calamine
from hypothesis import given, settings
from hypothesis import strategies as st

from msprobe.errors import ReportWriteError
from msprobe.report import csv_files, spreadsheet
from msprobe.report.spreadsheet import write_sheets
from msprobe.report.table_files import TableFormat, write_table
from msprobe.report.tables import Colour, Table

COLUMNS = ("Name", "Value")
ROWS = [
    ["a", 1.5],
    ["b, with comma", None],
    ['c "quoted"', 3],
    ["two\nlines", True],
    ["ü → 字", "text"],
]
FORMULAS = ["=1+1", "@sum(a)", "+cmd", "-cmd|x", "\ttab", "\rreturn"]


def read_csv(path: Path) -> list[list[str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def read_xlsx(path: Path, sheet: str | None = None) -> list[list[object]]:
    workbook = python_calamine.CalamineWorkbook.from_path(path)
    return workbook.get_sheet_by_name(sheet or workbook.sheet_names[0]).to_python()


@pytest.mark.parametrize("kind", list(TableFormat))
def test_a_table_comes_back_as_it_was(kind, tmp_path):
    (path,) = write_table(Table.of(COLUMNS, ROWS), tmp_path / "new" / "table", kind)
    assert path == tmp_path / "new" / f"table.{kind}"
    if kind is TableFormat.CSV:
        assert read_csv(path) == [
            ["Name", "Value"],
            ["a", "1.5"],
            ["b, with comma", ""],
            ['c "quoted"', "3"],
            ["two\nlines", "True"],
            ["ü → 字", "text"],
        ]
    elif kind is TableFormat.XLSX:
        expected = [list(COLUMNS), *ROWS]
        assert read_xlsx(path) == [["" if c is None else c for c in row] for row in expected]
    else:
        frame = pl.read_parquet(path)
        assert frame["Name"].to_list() == [row[0] for row in ROWS]
        assert frame["Value"].to_list() == ["1.5", None, "3", "True", "text"]


def test_the_suffix_of_the_path_is_not_doubled(tmp_path):
    (path,) = write_table(Table.of(COLUMNS, ROWS), tmp_path / "v1.2.csv", "csv")
    assert path.name == "v1.2.csv"
    (path,) = write_table(Table.of(COLUMNS, ROWS), tmp_path / "v1.2", "csv")
    assert path.name == "v1.2.csv"


@pytest.mark.parametrize("kind", list(TableFormat))
def test_a_polars_frame_is_a_table(kind, tmp_path):
    frame = pl.DataFrame({"name": ["a", "b"], "error": [0.5, None], "count": [1, 2]})
    (path,) = write_table(frame, tmp_path / "frame", kind)
    if kind is TableFormat.PARQUET:
        assert pl.read_parquet(path).equals(frame)
    elif kind is TableFormat.CSV:
        assert read_csv(path) == [["name", "error", "count"], ["a", "0.5", "1"], ["b", "", "2"]]
    else:
        assert read_xlsx(path) == [["name", "error", "count"], ["a", 0.5, 1.0], ["b", "", 2.0]]


@pytest.mark.parametrize("kind", list(TableFormat))
def test_an_empty_table_has_its_titles(kind, tmp_path):
    (path,) = write_table(Table.of(COLUMNS, []), tmp_path / "empty", kind)
    if kind is TableFormat.PARQUET:
        assert pl.read_parquet(path).columns == list(COLUMNS)
    else:
        read = read_csv if kind is TableFormat.CSV else read_xlsx
        assert read(path) == [list(COLUMNS)]


def test_numbers_alone_are_numbers_in_parquet(tmp_path):
    table = Table.of(("text", "number"), [["1", 2], ["x", None], [None, 0.1]])
    (path,) = write_table(table, tmp_path / "t", "parquet")
    assert pl.read_parquet(path).schema == {"text": pl.String, "number": pl.Float64}
    assert pl.read_parquet(path)["number"].to_list() == [2.0, None, 0.1]


def test_infinite_numbers_have_a_space_before_them_in_csv(tmp_path):
    rows = [[math.inf, "inf"], [-math.inf, "-inf"], [math.nan, "-1.5%"]]
    (path,) = write_table(Table.of(COLUMNS, rows), tmp_path / "t", "csv")
    assert read_csv(path)[1:] == [[" inf", "inf"], [" -inf", "-inf"], ["nan", "-1.5%"]]


def test_what_spreadsheets_have_no_number_for_is_text(tmp_path):
    rows = [[math.inf, 2**53 + 1], [-math.inf, -(2**63)], [math.nan, 10**400]]
    (path,) = write_table(Table.of(COLUMNS, rows), tmp_path / "t", "xlsx")
    assert read_xlsx(path)[1:] == [
        ["inf", "9007199254740993"],
        ["-inf", "-9223372036854775808"],
        ["nan", "1" + 400 * "0"],
    ]


def test_formulas_are_text(tmp_path):
    table = Table.of(COLUMNS, [[text, text] for text in FORMULAS])
    (path,) = write_table(table, tmp_path / "t", "csv")
    assert [row[0] for row in read_csv(path)[1:]] == [f"'{text}" for text in FORMULAS]
    (path,) = write_table(table, tmp_path / "t", "xlsx")
    assert b"<f>" not in zipfile.ZipFile(path).read("xl/worksheets/sheet1.xml")
    assert [row[0] for row in read_xlsx(path)[1:5]] == FORMULAS[:4]


def test_hostile_text_makes_no_broken_files(tmp_path):
    texts = [
        "\ud800",
        "nul\0",
        "\x1b[31m",
        "_x0041_",
        "]]>",
        "<a b='c'>&amp;",
        "\uffff",
        40_000 * "x",
    ]
    table = Table.of(COLUMNS, [[text, "end"] for text in texts])
    (path,) = write_table(table, tmp_path / "t", "xlsx")
    ElementTree.fromstring(zipfile.ZipFile(path).read("xl/worksheets/sheet1.xml"))
    found = read_xlsx(path)[1:]
    assert [row[1] for row in found] == ["end"] * len(texts)
    assert found[3][0] == "_x0041_"
    assert found[4][0] == "]]>"
    assert found[5][0] == "<a b='c'>&amp;"
    assert len(str(found[7][0])) == 32_767
    (path,) = write_table(table, tmp_path / "t", "csv")
    assert read_csv(path)[1] == ["\\ud800", "end"]


# What XML and csv can hold without escapes of the format; the rest is looked at above.
PLAIN = st.text(string.ascii_letters + string.digits + " ,\"'<>&;_\n字é", max_size=20)
CELLS = st.one_of(
    PLAIN.filter(lambda text: not text.startswith("'")),
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(-(2**53), 2**53),
    st.booleans(),
)


@settings(deadline=None)
@given(st.lists(st.lists(CELLS, min_size=3, max_size=3), min_size=1, max_size=20))
def test_any_table_comes_back(rows):
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        table = Table.of(("a", "b", "c"), rows)
        (path,) = write_table(table, Path(folder) / "t", "xlsx")
        assert [list(map(key, row)) for row in read_xlsx(path)[1:]] == [
            list(map(key, row)) for row in rows
        ]
        (path,) = write_table(table, Path(folder) / "t", "csv")
        assert read_csv(path)[1:] == [[str(cell) for cell in row] for row in rows]


def key(cell: object) -> object:
    """Return a cell as a spreadsheet keeps it: numbers have 16 digits."""
    return cell if isinstance(cell, (bool, str)) else float(f"{float(cell):.16G}")  # type: ignore[arg-type]


def coloured() -> Table:
    colours = [None, Colour.RED, Colour.YELLOW]
    rows = [(["x", None], colour) for colour in colours]
    return Table(columns=COLUMNS, count=3, rows=lambda: iter(rows))


def fills(path: Path) -> list[str | None]:
    """Return the fill of each row's first cell, read from the file's own tables of styles."""
    name = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
    archive = zipfile.ZipFile(path)
    styles = ElementTree.fromstring(archive.read("xl/styles.xml"))
    colours = [
        None if (found := fill.find(f".//{name}fgColor")) is None else found.get("rgb")
        for fill in styles.iter(f"{name}fill")
    ]
    formats = [int(xf.get("fillId", 0)) for xf in styles.find(f"{name}cellXfs") or ()]
    sheet = ElementTree.fromstring(archive.read("xl/worksheets/sheet1.xml"))
    return [colours[formats[int(row[0].get("s", 0))]] for row in sheet.iter(f"{name}row")]


def test_rows_have_their_colours(tmp_path):
    (path,) = write_table(coloured(), tmp_path / "t", "xlsx")
    assert fills(path) == [None, None, "FFFF0000", "FFFFFF00"]


def test_the_header_stays_and_filters(tmp_path):
    (path,) = write_table(Table.of(COLUMNS, ROWS), tmp_path / "t", "xlsx")
    xml = zipfile.ZipFile(path).read("xl/worksheets/sheet1.xml").decode()
    assert 'state="frozen"' in xml
    assert '<autoFilter ref="A1:B6"/>' in xml


def numbered(count: int) -> Table:
    return Table(
        columns=("n",), count=count, rows=lambda: (([number], None) for number in range(count))
    )


def test_a_csv_of_too_many_rows_has_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_files, "MAX_ROWS", 10)
    paths = write_table(numbered(25), tmp_path / "t", "csv")
    assert [path.name for path in paths] == ["t_part_1.csv", "t_part_2.csv", "t_part_3.csv"]
    found = [read_csv(path) for path in paths]
    assert [part[0] for part in found] == [["n"]] * 3
    assert [int(row[0]) for part in found for row in part[1:]] == list(range(25))


def test_a_spreadsheet_of_too_many_rows_has_sheets(tmp_path, monkeypatch):
    monkeypatch.setattr(spreadsheet, "MAX_ROWS", 10)
    (path,) = write_table(numbered(25), tmp_path / "t", "xlsx")
    names = python_calamine.CalamineWorkbook.from_path(path).sheet_names
    assert names == ["part_0", "part_1", "part_2"]
    found = [read_xlsx(path, name) for name in names]
    assert [part[0] for part in found] == [["n"]] * 3
    assert [row[0] for part in found for row in part[1:]] == list(range(25))


def test_a_large_sheet_has_the_form_for_large_files(tmp_path, monkeypatch):
    monkeypatch.setattr(spreadsheet, "MAX_ORDINARY_CELLS", 100)
    (path,) = write_table(numbered(1000), tmp_path / "t", "xlsx")
    assert [row[0] for row in read_xlsx(path)[1:]] == list(range(1000))


def test_small_files_have_no_large_members(tmp_path):
    (path,) = write_table(numbered(10), tmp_path / "t", "xlsx")
    versions = [info.extract_version for info in zipfile.ZipFile(path).infolist()]
    assert set(versions) == {zipfile.DEFAULT_VERSION}


def test_several_tables_are_several_sheets(tmp_path):
    path = tmp_path / "t.xlsx"
    write_sheets({"one & only": Table.of(COLUMNS, ROWS), "it's": numbered(3)}, path)
    assert read_xlsx(path, "one & only")[1] == ["a", 1.5]
    assert read_xlsx(path, "it's") == [["n"], [0.0], [1.0], [2.0]]
    with pytest.raises(ValueError, match="has 1048501 rows"):
        write_sheets({"much": numbered(spreadsheet.MAX_ROWS + 1)}, path)


@pytest.mark.parametrize("kind", list(TableFormat))
def test_a_file_that_is_there_is_replaced_with_a_warning(kind, tmp_path, caplog):
    path = tmp_path / f"t.{kind}"
    path.write_text("old")
    with caplog.at_level(logging.WARNING, logger="msprobe"):
        write_table(Table.of(COLUMNS, ROWS), path, kind)
    assert "t." in caplog.text
    assert "replaced" in caplog.text
    assert path.read_bytes() != b"old"


@pytest.mark.parametrize("kind", list(TableFormat))
def test_a_table_that_fails_leaves_no_file_and_keeps_the_old_one(kind, tmp_path):
    def rows():
        yield ["a", 1], None
        raise KeyError("damaged")

    path = tmp_path / f"t.{kind}"
    path.write_text("old")
    with pytest.raises(KeyError):
        write_table(Table(columns=COLUMNS, count=2, rows=rows), path, kind)
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_a_folder_that_cannot_be_made_is_an_error_with_its_path(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ReportWriteError, match=r"file.t\.csv: cannot be written"):
        write_table(Table.of(COLUMNS, ROWS), tmp_path / "file" / "t", "csv")


def test_rows_are_not_held_in_memory(tmp_path):
    import tracemalloc

    text = "x" * 100
    for kind in ("csv", "xlsx"):
        table = Table(
            columns=COLUMNS,
            count=20_000,
            rows=lambda: (([f"{text}{n}", n], None) for n in range(20_000)),
        )
        tracemalloc.start()
        write_table(table, tmp_path / "t", kind)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 12 << 20, (kind, peak)
