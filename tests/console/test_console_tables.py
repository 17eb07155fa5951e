"""Tables: what the address asks for is what is shown, and exports are whole and harmless."""

import csv
import io
import json
from typing import NamedTuple

import pytest
from starlette.datastructures import QueryParams

from anabranch.console.tables import (
    SIZE_MAX,
    Column,
    Table,
    Value,
    export_csv,
    export_json,
    make_table,
)


class Thing(NamedTuple):
    name: str
    size: int | None
    note: str = ""


COLUMNS: list[Column[Thing]] = [
    Column("name", "Name", lambda thing: thing.name, is_searched=True),
    Column("size", "Size", lambda thing: thing.size, is_number=True),
    Column("note", "Note", lambda thing: thing.note),
]
THINGS = [Thing("beta", 2), Thing("alpha", None), Thing("gamma", 10), Thing("delta", 1, "small")]


def table_of(query: str, things: list[Thing] | None = None, **how: object) -> Table[Thing]:
    rows = THINGS if things is None else things
    return make_table("things", COLUMNS, rows, QueryParams(query), **how)  # type: ignore[arg-type]


def names(table: Table[Thing]) -> list[str]:
    return [thing.name for thing in table.rows]


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ("", ["beta", "alpha", "gamma", "delta"]),
        ("sort=name", ["alpha", "beta", "delta", "gamma"]),
        ("sort=-name", ["gamma", "delta", "beta", "alpha"]),
        # Numbers as numbers, and what is not known last, whichever way round.
        ("sort=size", ["delta", "beta", "gamma", "alpha"]),
        ("sort=-size", ["gamma", "beta", "delta", "alpha"]),
        ("sort=nothing", ["beta", "alpha", "gamma", "delta"]),
        ("q=ta", ["beta", "delta"]),
        ("q=TA+d", ["delta"]),
        # Only what is searched counts.
        ("q=small", []),
        ("size=3", ["beta", "alpha", "gamma"]),
        ("size=3&page=2", ["delta"]),
        # What makes no sense is as near to it as can be.
        ("size=3&page=99", ["delta"]),
        ("size=0&page=-1", ["beta"]),
        ("size=x&page=\u0663", ["beta", "alpha", "gamma", "delta"]),
    ],
)
def test_address_says_what_is_shown(query: str, shown: list[str]) -> None:
    """Filter, order and page come from the address."""
    assert names(table_of(query)) == shown


def test_page_has_a_limit() -> None:
    """Nobody gets more rows at once than a page can bear."""
    table = table_of("size=999999", [Thing(str(i), i) for i in range(SIZE_MAX + 1)])
    assert (len(table.rows), table.pages) == (SIZE_MAX, 2)


def test_several_tables_keep_apart() -> None:
    """With several tables on a page each has its own parameters, and keeps those of the others."""
    table = table_of("things.sort=-size&other.sort=name&things.q=ta&q=gamma", is_only=False)
    assert names(table) == ["beta", "delta"]
    kept = QueryParams(table.address(sort="name").removeprefix("?"))
    assert kept["other.sort"] == "name"
    assert kept["things.sort"] == "name"
    assert ("other.sort", "name") in table.hidden_fields
    assert all(key != "things.q" for key, _ in table.hidden_fields)


def test_links_turn_the_order_round() -> None:
    """A head leads to the order that is not there yet; the largest numbers come first."""
    assert QueryParams(table_of("").sorting(COLUMNS[1])[1:])["sort"] == "-size"
    assert QueryParams(table_of("sort=-size").sorting(COLUMNS[1])[1:])["sort"] == "size"
    assert QueryParams(table_of("sort=name").sorting(COLUMNS[0])[1:])["sort"] == "-name"
    assert table_of("sort=-size").direction(COLUMNS[1]) == "descending"
    # A change of the order goes back to the first page, a page keeps the order.
    assert "page" not in QueryParams(table_of("page=2&size=1").sorting(COLUMNS[0])[1:])
    assert QueryParams(table_of("sort=name&size=1").address(page=2)[1:])["sort"] == "name"


def read_csv(table: Table[Thing]) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(bytes(export_csv(table).body).decode())))


def test_exports_are_all_rows_that_pass() -> None:
    """Files have every row of the filter in order, whatever page is shown."""
    table = table_of("q=a&sort=name&size=1&page=2")
    assert [row["name"] for row in read_csv(table)] == ["alpha", "beta", "delta", "gamma"]
    found = json.loads(bytes(export_json(table).body))
    assert found[0] == {"name": "alpha", "size": None, "note": ""}
    assert len(found) == 4


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"])
def test_csv_runs_nothing(name: str) -> None:
    """What a spreadsheet would run is text there; JSON has it as it is."""
    table = table_of("", [Thing(name, -5)])
    (row,) = read_csv(table)
    assert row["name"] == "'" + name
    assert row["size"] == "-5"  # numbers stay numbers
    assert json.loads(bytes(export_json(table).body))[0]["name"] == name


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "\u2013"), (True, "yes"), (1234567, "1,234,567"), ("<b>", "<b>"), (0, "0")],
)
def test_cells(value: Value, shown: str) -> None:
    """What is not known is a dash, and a 0 is a 0."""
    column: Column[Value] = Column("x", "X", lambda row: row)
    assert column.cell(value) == shown


def test_one_bad_row_is_an_error_of_its_own() -> None:
    """A row that cannot be read is shown as such; the others are filtered, sorted and exported."""

    def size(thing: Thing) -> int:
        if thing.name == "alpha":
            raise RuntimeError("no <idea>")
        return thing.size or 0

    columns = [COLUMNS[0], Column("size", "Size", size, is_number=True, is_searched=True)]
    table = make_table("things", columns, THINGS, QueryParams("sort=-size"))
    assert [thing.name for thing in table.rows] == ["gamma", "beta", "delta", "alpha"]
    assert columns[1].cell(THINGS[0]) == "2"
    assert "error" in columns[1].cell(THINGS[1])
    assert "no &lt;idea&gt;" in columns[1].cell(THINGS[1])
    assert json.loads(bytes(export_json(table).body))[3] == {"name": "alpha", "size": None}
    assert len(read_csv(table)) == 4
