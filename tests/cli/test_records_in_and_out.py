"""Records as `produce` reads and `consume` writes them: lines, templates, JSON, start positions."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.cli.errors import CliError
from anabranch.cli.records.reading import OutgoingRecord, records_from_json, records_from_lines
from anabranch.cli.records.start_position import Start, StartKind, parse_last, parse_start
from anabranch.cli.records.writing import record_document, template_writer, unescape


class Message:
    """What confluent-kafka hands out, as far as the writers look at it."""

    def __init__(
        self,
        key: bytes | None = b"k",
        value: bytes | None = b"v",
        headers: Sequence[tuple[str, bytes | None]] | None = None,
    ) -> None:
        self._key, self._value, self._headers = key, value, headers

    def topic(self) -> str:
        return "orders"

    def partition(self) -> int:
        return 2

    def offset(self) -> int:
        return 41

    def timestamp(self) -> tuple[int, int]:
        return (1, 1_700_000_000_123)

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> Sequence[tuple[str, bytes | None]] | None:
        return self._headers


def from_json(*documents: object, keep_partitions: bool = False) -> list[OutgoingRecord]:
    lines = [json.dumps(document).encode() for document in documents]
    return list(records_from_json(lines, keep_partitions=keep_partitions))


# --- lines ----------------------------------------------------------------------------------


def test_a_line_is_a_value() -> None:
    """Without a separator every line is a value, empty ones too, and only the newline goes."""
    records = list(
        records_from_lines(
            [b"a\n", b"\n", b" b \r\n", b"end"], key_separator=None, null_marker=None
        )
    )
    assert [record.value for record in records] == [b"a", b"", b" b \r", b"end"]
    assert {record.key for record in records} == {None}


def test_the_first_separator_splits() -> None:
    """The key ends at the first separator; either side may be empty."""
    records = list(
        records_from_lines(
            [b"k::a::b\n", b"::v\n", b"k::\n"], key_separator=b"::", null_marker=None
        )
    )
    assert [(record.key, record.value) for record in records] == [
        (b"k", b"a::b"),
        (b"", b"v"),
        (b"k", b""),
    ]


def test_the_null_marker() -> None:
    """A key or value that is exactly the marker is null."""
    records = list(
        records_from_lines(
            [b"k:NULL\n", b"NULL:v\n", b"k:NULLS"], key_separator=b":", null_marker=b"NULL"
        )
    )
    assert [(record.key, record.value) for record in records] == [
        (b"k", None),
        (None, b"v"),
        (b"k", b"NULLS"),
    ]


def test_a_line_without_separator_is_named() -> None:
    """The line that cannot be split is named by its number; those before it went out."""
    lines = records_from_lines([b"a:1\n", b"oops\n"], key_separator=b":", null_marker=None)
    assert next(lines).key == b"a"
    with pytest.raises(CliError, match="Cannot send line 2 - it has no key separator ':'"):
        next(lines)


# --- JSON -----------------------------------------------------------------------------------


def test_json_records() -> None:
    """Strings, nulls, base64 and other JSON values become bytes; blank lines are skipped."""
    assert from_json(
        {"value": "é"},
        {"value": None, "key": "k"},
        {"value": "/wA=", "value_encoding": "base64", "timestamp": 5},
        {"value": {"a": [1, "é"]}, "headers": {"h": "x"}},
        {"value": 7, "headers": [{"key": "h", "value": None}, {"key": "h", "value": "y"}]},
    ) == [
        OutgoingRecord(key=None, value="é".encode()),
        OutgoingRecord(key=b"k", value=None),
        OutgoingRecord(key=None, value=b"\xff\x00", timestamp_ms=5),
        OutgoingRecord(key=None, value='{"a":[1,"é"]}'.encode(), headers=(("h", b"x"),)),
        OutgoingRecord(key=None, value=b"7", headers=(("h", None), ("h", b"y"))),
    ]
    assert list(records_from_json([b"\n", b"  \n"], keep_partitions=False)) == []


def test_partitions_are_kept_only_on_request() -> None:
    """A record's partition counts with --keep-partitions and is ignored without."""
    assert from_json({"value": "v", "partition": 3})[0].partition is None
    assert from_json({"value": "v", "partition": 3}, keep_partitions=True)[0].partition == 3


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"{nope", "it is no JSON"),
        (b"[]", 'no JSON object with a "value"'),
        (b'{"key": "k"}', 'no JSON object with a "value"'),
        (b'{"value": "?", "value_encoding": "base64"}', '"value" is no base64'),
        (b'{"value": "x", "value_encoding": "hex"}', "must be"),
        (b'{"value": "x", "timestamp": -1}', '"timestamp" must be a whole number'),
        (b'{"value": "x", "timestamp": true}', '"timestamp" must be a whole number'),
        (b'{"value": "x", "headers": "h"}', '"headers" must be a list'),
        (b'{"value": "x", "headers": [{"value": "h"}]}', 'each header needs a "key"'),
        (b"\xff", "it is no JSON"),
    ],
)
def test_bad_json_is_named(line: bytes, why: str) -> None:
    """Whatever is wrong with a line, its number and the reason are told."""
    with pytest.raises(CliError, match="Cannot send line 2 - ") as caught:
        list(records_from_json([b'{"value": 1}', line], keep_partitions=False))
    assert why in str(caught.value)


@given(
    key=st.none() | st.binary(max_size=20),
    value=st.none() | st.binary(max_size=20),
    headers=st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=9)), max_size=3),
)
def test_what_consume_writes_produce_reads(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]
) -> None:
    """A record survives the way through JSON whatever its bytes are."""
    document = record_document(Message(key, value, headers))
    assert from_json(document, keep_partitions=True) == [
        OutgoingRecord(
            key=key,
            value=value,
            headers=tuple(headers),
            partition=2,
            timestamp_ms=1_700_000_000_123,
        )
    ]


def test_the_json_of_a_record() -> None:
    """The fields of a record are these, in this order."""
    assert record_document(Message(None, b"\xff", [("h", b"x")])) == {
        "topic": "orders",
        "partition": 2,
        "offset": 41,
        "timestamp": 1_700_000_000_123,
        "timestamp_type": "CreateTime",
        "key": None,
        "key_encoding": "utf-8",
        "value": "/w==",
        "value_encoding": "base64",
        "headers": [{"key": "h", "value": "x", "value_encoding": "utf-8"}],
    }
    assert record_document(Message())["headers"] == []


# --- templates ------------------------------------------------------------------------------


def test_every_placeholder() -> None:
    """Each placeholder of kcat's that we know stands for its part of the record."""
    write = template_writer(r"%t|%p|%o|%k|%K|%s|%S|%T|%h|%%|\t\x41\\\n", b"")
    message = Message(b"key", b"\xffvalue", [("a", b"1"), ("b", None)])
    assert write(message) == (b"orders|2|41|key|3|\xffvalue|6|1700000000123|a=1,b=|%|\tA\\\n")


def test_nulls_in_a_template() -> None:
    """Null keys and values are the marker, with length -1; absent headers are nothing."""
    write = template_writer("%k %K %s %S [%h]", b"NIL")
    assert write(Message(None, None)) == b"NIL -1 NIL -1 []"
    assert write(Message(b"", b"")) == b" 0  0 []"


@pytest.mark.parametrize("template", ["%x", "abc%", "%s%", r"\q", "%s\\"])
def test_bad_templates_are_usage_errors(template: str) -> None:
    """Unknown placeholders and escapes are refused; a lone backslash at the end is one too."""
    if template.endswith("\\"):
        assert template_writer(template, b"")(Message()) == b"v\\"
        return
    with pytest.raises(click.UsageError):
        template_writer(template, b"")


def test_unescape() -> None:
    """Escapes become bytes, everything else stays."""
    assert unescape(r"a\t\x00\xff\\é\r\0", "--x") == b"a\t\x00\xff\\\xc3\xa9\r\x00"


# --- start positions ------------------------------------------------------------------------

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("earliest", Start(StartKind.EARLIEST)),
        ("latest", Start(StartKind.LATEST)),
        ("0", Start(StartKind.OFFSET, 0)),
        ("1500", Start(StartKind.OFFSET, 1500)),
        ("-10", Start(StartKind.LAST, 10)),
        ("-0", Start(StartKind.LAST, 0)),
        ("5m", Start(StartKind.TIMESTAMP, NOW_MS - 300_000)),
        ("250ms", Start(StartKind.TIMESTAMP, NOW_MS - 250)),
        ("1h30m", Start(StartKind.TIMESTAMP, NOW_MS - 5_400_000)),
        ("2d", Start(StartKind.TIMESTAMP, NOW_MS - 172_800_000)),
        ("9999999w", Start(StartKind.TIMESTAMP, 0)),
        ("2023-11-14T22:13:20Z", Start(StartKind.TIMESTAMP, NOW_MS)),
        ("2023-11-14T22:13:20", Start(StartKind.TIMESTAMP, NOW_MS)),
        ("2023-11-15T00:13:20.000+02:00", Start(StartKind.TIMESTAMP, NOW_MS)),
        (
            "2023-11-14",
            Start(StartKind.TIMESTAMP, int(datetime(2023, 11, 14, tzinfo=UTC).timestamp() * 1000)),
        ),
    ],
)
def test_start_positions(text: str, start: Start) -> None:
    """Each form of --from means its position; times are UTC unless they name a zone."""
    assert parse_start(text, now_ms=NOW_MS) == start


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("10", Start(StartKind.LAST, 10)),
        ("5m", Start(StartKind.TIMESTAMP, NOW_MS - 300_000)),
        ("1h30m", Start(StartKind.TIMESTAMP, NOW_MS - 5_400_000)),
    ],
)
def test_last_is_a_duration_or_a_number_of_records(text: str, start: Start) -> None:
    """What --last means; anything else is refused with both forms named."""
    assert parse_last(text, now_ms=NOW_MS) == start
    with pytest.raises(ValueError, match="neither a duration"):
        parse_last(f"{text}x", now_ms=NOW_MS)


@pytest.mark.parametrize(
    "text", ["", "5", "5x", "m", "1.5h", "yesterday", "--1", "5m ago", "2023-13-01"]
)
def test_bad_start_positions(text: str) -> None:
    """Anything else is refused with the forms there are (a bare number is an offset)."""
    if text == "5":
        assert parse_start(text, now_ms=NOW_MS).kind is StartKind.OFFSET
        return
    with pytest.raises(ValueError, match="is none of earliest, latest"):
        parse_start(text, now_ms=NOW_MS)
