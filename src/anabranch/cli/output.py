"""Writing results: aligned text for people, JSON for programs, TSV for cut, awk and spreadsheets.

Data goes to stdout and nothing else does. Text is columns under upper-case headers, separated by
two spaces and never cut, so that awk and eyes both find them; JSON is one document, or one object
per line where results stream. TSV is the tables of text without the alignment: a header line, tabs
between cells, nothing in a cell where text has `-`.

Commands write tables with `write_table` and need not know which of the two it becomes:
`format_option` leaves the choice in click's context, where it ends with the command.
"""

import base64
import json
import os
import sys
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, Final

import click

FORMATS: Final = ("text", "json", "tsv")
_FORMAT_KEY: Final = "anabranch.format"
_ROWS_AHEAD: Final = 1000  # a table is aligned block by block, so that long ones stream
_GAP: Final = "  "
_MISSING: Final = "-"
# As in PostgreSQL's COPY: what would end a cell or a line is written with a backslash.
_TSV_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})

Row = Sequence[object]


def choose_format(context: click.Context, output_format: str) -> None:
    """Remember how this command writes its tables."""
    context.meta[_FORMAT_KEY] = output_format


def is_tsv() -> bool:
    """Whether this command writes its tables as TSV."""
    context = click.get_current_context(silent=True)
    return context is not None and context.meta.get(_FORMAT_KEY) == "tsv"


def write_table(columns: Sequence[str], rows: Iterable[Row]) -> None:
    """Write a table, as text or as TSV.

    In text None is shown as `-`, and columns never get narrower as the table goes on.
    """
    if is_tsv():
        write_tsv_line(columns)
        for row in rows:
            write_tsv_line(row)
        return
    widths = [len(column) for column in columns]
    remaining = iter(rows)
    header: list[Sequence[str]] = [columns]
    while True:
        block = header + [_cells(row) for row in islice(remaining, _ROWS_AHEAD)]
        if not block:
            return
        header = []
        for cells in block:
            widths = [max(width, len(cell)) for width, cell in zip(widths, cells, strict=True)]
        for cells in block:
            line = _GAP.join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
            sys.stdout.write(line.rstrip() + "\n")


def _cells(row: Row) -> list[str]:
    return [_MISSING if value is None or value == "" else str(value) for value in row]


def write_tsv_line(cells: Row) -> None:
    """Write one line of TSV: a header, or a row whose missing cells are empty."""
    texts = ("" if cell is None else str(cell).translate(_TSV_ESCAPES) for cell in cells)
    sys.stdout.write("\t".join(texts) + "\n")


def write_json(document: Any) -> None:
    """Write one document, indented."""
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def write_json_line(document: Any) -> None:
    """Write one object of a stream, on one line."""
    sys.stdout.write(json.dumps(document, separators=(",", ":"), ensure_ascii=False) + "\n")


def write_blank_line() -> None:
    sys.stdout.write("\n")


def note(sentence: str) -> None:
    """Tell the user something that is not data."""
    sys.stderr.write(sentence + "\n")


def report_error(sentence: str) -> None:
    """Tell a failure, in one line."""
    label = "error:"
    if sys.stderr.isatty() and not os.environ.get("NO_COLOR"):
        label = f"\x1b[31m{label}\x1b[0m"
    sys.stderr.write(f"{label} {sentence}\n")


def counted(number: int, noun: str, plural: str = "") -> str:
    """`1 record`, `2 records`, `3 batches`."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def text_field(name: str, data: bytes | None) -> dict[str, str | None]:
    """Bytes as a JSON field and its encoding: base64 where they are not UTF-8."""
    if data is None:
        return {name: None, f"{name}_encoding": "utf-8"}
    try:
        return {name: data.decode("utf-8"), f"{name}_encoding": "utf-8"}
    except UnicodeDecodeError:
        return {name: base64.b64encode(data).decode("ascii"), f"{name}_encoding": "base64"}


def printable(data: bytes | None) -> str | None:
    """Bytes as one line of text: UTF-8 where it is, escapes for what would not show."""
    if data is None:
        return None
    text = data.decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else _escaped(character) for character in text
    )


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
