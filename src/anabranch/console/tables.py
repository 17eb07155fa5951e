"""Tables: filtered, sorted and cut to a page on the server, and exported as a whole.

The address says what is shown: `q` (words that a row must have), `sort` (a column, `-` before it
for the other way round), `page` and `size`; with several tables on a page these have the table's
name before them (`members.sort=-lag`). Rows are any objects; a column says how to get its value,
which is what is filtered, sorted and exported, and a template may show it in another form.
"""

import csv
import io
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar
from urllib.parse import urlencode

from markupsafe import Markup, escape
from starlette.datastructures import QueryParams
from starlette.responses import Response

from anabranch.broker.survey_reading import Slices
from anabranch.console.words import MISSING
from anabranch.observe import logs

Row = TypeVar("Row")
Value = str | int | float | bool | None

SIZE_DEFAULT = 50
SIZE_MAX = 500


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """One column; `key` is its name in addresses and exports."""

    key: str
    title: str
    value: Callable[[Row], Value]
    # How a cell looks, where its value alone is not enough.
    html: Callable[[Row], Markup | str] | None = None
    is_number: bool = False
    # A sentence about the column, shown on hover.
    hint: str = ""
    is_searched: bool = False

    def known(self, row: Row) -> Value:
        """The value; None when it cannot be had: one bad row must not take the others with it."""
        try:
            return self.value(row)
        except Exception as error:
            logs.error("console.value.failed", column=self.key, error=repr(error))
            return None

    def cell(self, row: Row) -> Markup | str:
        """What is shown; one bad cell is an error in its place, and not of the page."""
        try:
            return self._cell(row)
        except Exception as error:
            logs.error("console.cell.failed", column=self.key, error=repr(error))
            return Markup('<span class="bad" title="{}">error</span>').format(error)

    def _cell(self, row: Row) -> Markup | str:
        if self.html is not None:
            return self.html(row)
        value = self.value(row)
        if value is None:
            return MISSING
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, int):
            return f"{value:,}"
        return str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table(Generic[Row]):
    """The rows of one page of a table, and all that its head and foot need."""

    name: str
    columns: Sequence[Column[Row]]
    # All rows that pass the filter, in order: what is exported.
    filtered: Sequence[Row]
    # Those of this page.
    rows: Sequence[Row]
    total: int
    page: int
    pages: int
    size: int
    q: str
    sort: str
    empty: str
    _prefix: str
    _query: QueryParams
    # The rows of this page as HTML, as far as they are made.
    _made: list[Markup] = field(default_factory=list)

    @property
    def first(self) -> int:
        return (self.page - 1) * self.size + 1 if self.rows else 0

    @property
    def last(self) -> int:
        return self.first + len(self.rows) - 1 if self.rows else 0

    @property
    def body(self) -> Sequence[Markup]:
        """The rows of this page as HTML."""
        for row in self.rows[len(self._made) :]:
            self._made.append(self._row_html(row))
        return self._made

    async def make_body(self, slices: Slices) -> None:
        """Make the body in turns with whoever else wants the loop."""
        while len(self._made) < len(self.rows):
            self._made.append(self._row_html(self.rows[len(self._made)]))
            if slices.is_over:
                await slices.pause()

    def _row_html(self, row: Row) -> Markup:
        cells = [
            f'<td class="number">{escape(column.cell(row))}</td>'
            if column.is_number
            else f"<td>{escape(column.cell(row))}</td>"
            for column in self.columns
        ]
        return Markup("<tr>" + "".join(cells) + "</tr>\n")

    def key(self, name: str) -> str:
        """The name of one of this table's parameters in the address."""
        return self._prefix + name

    def address(self, **changes: str | int) -> str:
        """The query of this page with other parameters of this table."""
        kept = {key: value for key, value in self._query.items() if key != "format"}
        for name, value in changes.items():
            key = name if name in ("format", "table") else self.key(name)
            kept[key] = str(value)
            if name in ("q", "sort", "size"):
                kept.pop(self.key("page"), None)
        return "?" + urlencode({key: value for key, value in kept.items() if value != ""})

    def sorting(self, column: Column[Row]) -> str:
        """What the head of a column leads to; the largest numbers come first."""
        first, second = column.key, f"-{column.key}"
        if column.is_number:
            first, second = second, first
        return self.address(sort=second if self.sort == first else first)

    def direction(self, column: Column[Row]) -> str:
        """`ascending`, `descending` or `none`, as aria-sort says it."""
        if self.sort.lstrip("-") != column.key:
            return "none"
        return "descending" if self.sort.startswith("-") else "ascending"

    @property
    def hidden_fields(self) -> list[tuple[str, str]]:
        """What the search form has to carry along."""
        mine = {self.key("q"), self.key("page"), "format", "table"}
        return [(key, value) for key, value in self._query.items() if key not in mine]


def make_table(
    name: str,
    columns: Sequence[Column[Row]],
    rows: Iterable[Row],
    query: QueryParams,
    *,
    sort: str = "",
    empty: str = "Nothing to show.",
    is_only: bool = True,
    size: int = SIZE_DEFAULT,
) -> Table[Row]:
    """A table as the address asks for it; `sort` and `size` are what it is without."""
    prefix = "" if is_only else f"{name}."
    q = query.get(f"{prefix}q", "").strip()
    sort = query.get(f"{prefix}sort", sort)
    everything = list(rows)
    filtered = _filtered(everything, columns, q)
    by = next((column for column in columns if column.key == sort.lstrip("-")), None)
    if by is not None:
        filtered = _sorted(filtered, by, is_falling=sort.startswith("-"))
    size = min(max(_number(query.get(f"{prefix}size"), size), 1), SIZE_MAX)
    pages = max(1, -(-len(filtered) // size))
    page = min(max(_number(query.get(f"{prefix}page"), 1), 1), pages)
    return Table(
        name=name,
        columns=columns,
        filtered=filtered,
        rows=filtered[(page - 1) * size : page * size],
        total=len(everything),
        page=page,
        pages=pages,
        size=size,
        q=q,
        sort=sort,
        empty=empty,
        _prefix=prefix,
        _query=query,
    )


def _filtered(rows: list[Row], columns: Sequence[Column[Row]], q: str) -> list[Row]:
    wanted = q.lower().split()
    if not wanted:
        return rows
    searched = [column for column in columns if column.is_searched] or columns
    found = []
    for row in rows:
        text = "\n".join(str(column.known(row)) for column in searched).lower()
        if all(word in text for word in wanted):
            found.append(row)
    return found


def _sorted(rows: list[Row], by: Column[Row], *, is_falling: bool) -> list[Row]:
    """In order; rows without a value come last, whichever way round."""
    values = [(by.known(row), row) for row in rows]
    known = [(value, row) for value, row in values if value is not None]
    unknown = [row for value, row in values if value is None]
    if by.is_number:
        known.sort(key=lambda pair: pair[0], reverse=is_falling)
    else:
        known.sort(key=lambda pair: str(pair[0]), reverse=is_falling)
    return [row for _, row in known] + unknown


def _number(text: str | None, default: int) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() else default


def export_csv(table: Table[Row]) -> Response:
    """All rows that pass the filter, for a spreadsheet."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow([column.key for column in table.columns])
    for row in table.filtered:
        writer.writerow([_harmless(column.known(row)) for column in table.columns])
    return _file(text.getvalue(), "text/csv; charset=utf-8", f"{table.name}.csv")


def _harmless(value: Value) -> Value:
    """Spreadsheets run what begins with one of these; names of groups come from anybody."""
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return "'" + value
    return value


def export_json(table: Table[Row]) -> Response:
    rows = [{column.key: column.known(row) for column in table.columns} for row in table.filtered]
    text = json.dumps(rows, indent=1, ensure_ascii=False)
    return _file(text, "application/json", f"{table.name}.json")


def _file(text: str, media_type: str, name: str) -> Response:
    return Response(
        text,
        media_type=media_type,
        headers={
            "content-disposition": f'attachment; filename="{name}"',
            "cache-control": "no-store",
        },
    )
