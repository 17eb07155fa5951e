"""The writer of tables, JSON and one-line sentences."""

import contextlib
import io
import re

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.cli.output import (
    choose_format,
    counted,
    note,
    printable,
    report_error,
    text_field,
    write_json,
    write_json_line,
    write_table,
    write_tsv_line,
)


def test_columns_are_aligned_and_never_cut(capsys: pytest.CaptureFixture[str]) -> None:
    """Columns are as wide as their widest cell, two spaces apart; nothing is cut or padded last."""
    write_table(
        ("NAME", "VALUE", "NOTE"), [("a", 1, None), ("long" * 40, "", "end"), ("b", 0, "x")]
    )
    assert capsys.readouterr().out.splitlines() == [
        "NAME" + " " * 158 + "VALUE  NOTE",
        "a" + " " * 161 + "1      -",
        "long" * 40 + "  -      end",
        "b" + " " * 161 + "0      x",
    ]


def test_an_empty_table_is_its_header(capsys: pytest.CaptureFixture[str]) -> None:
    """Without rows the header still says what there would be."""
    write_table(("TOPIC", "PARTITIONS"), [])
    assert capsys.readouterr().out == "TOPIC  PARTITIONS\n"


def test_a_long_table_streams(capsys: pytest.CaptureFixture[str]) -> None:
    """Rows appear before the last one is known, and all appear once."""
    seen: list[str] = []

    def rows() -> "object":
        for number in range(2500):
            if number == 1500:
                seen.append(capsys.readouterr().out)
            yield (number, "x")

    write_table(("NUMBER", "X"), rows())
    assert seen[0].count("\n") == 1001
    rest = capsys.readouterr().out
    numbers = [line.split()[0] for line in (seen[0] + rest).splitlines()[1:]]
    assert numbers == [str(number) for number in range(2500)]


def test_json_keeps_letters_and_lists(capsys: pytest.CaptureFixture[str]) -> None:
    """A document is indented, a stream's object is one line, letters stay letters."""
    write_json([])
    write_json({"ä": [1]})
    write_json_line({"a": [], "b": "ä\n"})
    assert capsys.readouterr().out == '[]\n{\n  "ä": [\n    1\n  ]\n}\n{"a":[],"b":"ä\\n"}\n'


def test_notes_and_errors_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    """What is not data is on stderr, without colour where that is no terminal."""
    note("Done.")
    report_error("It failed - because - do this")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "Done.\nerror: It failed - because - do this\n"


@pytest.mark.parametrize(("no_color", "is_red"), [("", True), ("1", False)])
def test_colour_on_a_terminal(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    no_color: str,
    is_red: bool,
) -> None:
    """On a terminal the word error is red, unless NO_COLOR is set."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", no_color)
    report_error("x")
    assert ("\x1b[31m" in capsys.readouterr().err) is is_red


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (None, None),
        (b"plain", "plain"),
        ("größe".encode(), "größe"),
        (b"two\nlines\t", "two\\nlines\\t"),
        (b"\x00\xff", "\\x00\\xff"),
    ],
)
def test_printable(data: bytes | None, text: str | None) -> None:
    """Bytes become one line of text in which control characters and non-UTF-8 are escapes."""
    assert printable(data) == text


@given(data=st.binary())
def test_printable_is_always_one_line(data: bytes) -> None:
    """Whatever the bytes, the text prints on one line."""
    text = printable(data)
    assert text is not None
    assert text.isprintable()


def test_text_field() -> None:
    """A JSON field says how its bytes are encoded."""
    assert text_field("key", None) == {"key": None, "key_encoding": "utf-8"}
    assert text_field("key", "é".encode()) == {"key": "é", "key_encoding": "utf-8"}
    assert text_field("v", b"\xff\x00") == {"v": "/wA=", "v_encoding": "base64"}


def test_counted() -> None:
    """Nouns follow their number."""
    assert [counted(0, "record"), counted(1, "record")] == ["0 records", "1 record"]
    assert [counted(1, "batch", "batches"), counted(2, "batch", "batches")] == [
        "1 batch",
        "2 batches",
    ]


def test_tsv_has_the_columns_of_text(capsys: pytest.CaptureFixture[str]) -> None:
    """TSV is a header and a line per row, tabs between cells, nothing padded, cut or broken."""
    columns = ("NAME", "VALUE", "NOTE")
    with click.Context(click.Command("any")) as context:
        choose_format(context, "tsv")
        write_table(columns, [("a\tb\\", None, "two\nlines\r"), ("", 0, "x" * 300)])
    assert capsys.readouterr().out.splitlines() == [
        "NAME\tVALUE\tNOTE",
        "a\\tb\\\\\t\ttwo\\nlines\\r",
        "\t0\t" + "x" * 300,
    ]


@given(st.lists(st.lists(st.text(), min_size=2, max_size=2), max_size=5))
def test_tsv_can_be_read_back(rows: list[list[str]]) -> None:
    """Whatever the cells hold, splitting at newlines and tabs and unescaping gives them back."""
    written = io.StringIO()
    with contextlib.redirect_stdout(written):
        for row in rows:
            write_tsv_line(row)
    lines = written.getvalue().split("\n")[:-1]
    unescaped = {"\\": "\\", "t": "\t", "n": "\n", "r": "\r"}
    read = [
        [re.sub(r"\\(.)", lambda found: unescaped[found[1]], cell) for cell in line.split("\t")]
        for line in lines
    ]
    assert read == rows


def test_the_format_ends_with_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    """A command that was told to write TSV leaves the next one as it is."""
    with click.Context(click.Command("any")) as context:
        choose_format(context, "tsv")
    write_table(("A", "B"), [(1, None)])
    assert capsys.readouterr().out == "A  B\n1  -\n"
