"""`anabranch log dump` on files made by hand: what it shows, verifies and calls damaged."""

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from anabranch.cli.log.files import read_file
from anabranch.log.producer_state import ProducerStates, write_snapshot
from anabranch.wire.compression import GZIP
from anabranch.wire.record_batch import (
    CONTROL_FLAG,
    TRANSACTIONAL_FLAG,
    Record,
    build_batch,
    read_header,
)

NAME = "00000000000000000005"

FIRST = build_batch(
    [
        Record(5, 1_700_000_000_000, b"k", b"v", (("h", b"x"),)),
        Record(6, 1_700_000_000_001, None, b"\x00\xff"),
    ],
    base_offset=5,
    partition_leader_epoch=3,
)
SECOND = build_batch(
    [Record(7, 1_700_000_000_002, b"a" * 50, None)],
    base_offset=7,
    producer_id=9,
    producer_epoch=1,
    base_sequence=4,
    attributes=TRANSACTIONAL_FLAG,
)
MARKER = build_batch(
    [Record(8, 1_700_000_000_003, struct.pack(">hh", 0, 1), bytes(6))],
    base_offset=8,
    producer_id=9,
    producer_epoch=1,
    attributes=TRANSACTIONAL_FLAG | CONTROL_FLAG,
)
SEGMENT = FIRST + SECOND + MARKER

GOLDEN_BATCHES = """\
POSITION  BASE-OFFSET  LAST-OFFSET  RECORDS  SIZE-BYTES  CODEC  TIMESTAMP-TYPE  MAX-TIMESTAMP             LEADER-EPOCH  PRODUCER-ID  PRODUCER-EPOCH  BASE-SEQUENCE  FLAGS
0         5            6            2        83          none   CreateTime      2023-11-14T22:13:20.001Z  3             -            -               -              -
83        7            7            1        118         none   CreateTime      2023-11-14T22:13:20.002Z  0             9            1               4              transactional
201       8            8            1        78          none   CreateTime      2023-11-14T22:13:20.003Z  0             9            1               -1             transactional,control
"""  # noqa: E501


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sound partition folder."""
    partition = tmp_path / "orders-0"
    partition.mkdir()
    (partition / f"{NAME}.log").write_bytes(SEGMENT)
    (partition / f"{NAME}.index").write_bytes(struct.pack(">ii", 2, len(FIRST)) + bytes(80))
    (partition / f"{NAME}.timeindex").write_bytes(
        struct.pack(">qiqi", 1_700_000_000_001, 1, 1_700_000_000_003, 3)
    )
    states = ProducerStates()
    for batch in (SECOND, MARKER):
        states.record_header(read_header(batch), 0)
    write_snapshot(partition, 9, states)
    (partition / "leader-epoch-checkpoint").write_text("0\n0\n")
    return partition


def test_batches(run: Callable, folder: Path) -> None:
    """A segment's batches are a table, and what was verified is told beside it."""
    path = folder / f"{NAME}.log"
    result = run("log", "dump", path)
    assert result.code == 0
    assert result.out == f"{path}:\n" + GOLDEN_BATCHES
    assert result.err == f"{path}: 3 batches, 4 records, {len(SEGMENT)} bytes, all sound.\n"


def test_records(run: Callable, folder: Path) -> None:
    """With --records the table has a line per record, escaped so that it stays one line."""
    path = folder / f"{NAME}.log"
    result = run("log", "dump", path, "--records")
    assert result.code == 0
    assert [line.split() for line in result.out.splitlines()[1:]] == [
        ["OFFSET", "TIMESTAMP", "KEY", "VALUE", "HEADERS", "BATCH-POSITION"],
        ["5", "2023-11-14T22:13:20.000Z", "k", "v", "h=x", "0"],
        ["6", "2023-11-14T22:13:20.001Z", "(null)", "\\x00\\xff", "-", "0"],
        ["7", "2023-11-14T22:13:20.002Z", "a" * 50, "(null)", "-", "83"],
        ["8", "2023-11-14T22:13:20.003Z", "(control)", "(COMMIT)", "-", str(83 + len(SECOND))],
    ]


def test_a_folder(run: Callable, folder: Path) -> None:
    """A folder's files come segment by segment; files of other kinds are left alone."""
    result = run("log", "dump", folder)
    assert result.code == 0
    headings = [line for line in result.out.splitlines() if line.endswith(":")]
    assert headings == [
        f"{folder / NAME}.log:",
        f"{folder / NAME}.index:",
        f"{folder / NAME}.timeindex:",
        f"{folder}/00000000000000000009.snapshot:",
    ]
    assert "OFFSET  POSITION\n7       83\n" in result.out
    assert "TIMESTAMP                 OFFSET\n2023-11-14T22:13:20.001Z  6\n" in result.out
    assert ".index: 1 entry, 8 bytes, all sound, then 80 reserved bytes.\n" in result.err
    assert ".snapshot: 1 entry, " in result.err


def test_json(run: Callable, folder: Path) -> None:
    """JSON is an object per line: batches, their records, index entries, producers, summaries."""
    result = run("log", "dump", folder, "--records", "--format", "json")
    assert (result.code, result.err) == (0, "")
    types = [document["type"] for document in result.documents]
    assert types == [
        "batch", "record", "record", "batch", "record", "batch", "record", "summary",
        "offset_entry", "summary", "time_entry", "time_entry", "summary", "producer", "summary",
    ]  # fmt: skip
    path = str(folder / f"{NAME}.log")
    assert result.documents[0] == {
        "file": path,
        "type": "batch",
        "position": 0,
        "base_offset": 5,
        "last_offset": 6,
        "records_count": 2,
        "size_bytes": 83,
        "codec": "none",
        "timestamp_type": "CreateTime",
        "base_timestamp": 1_700_000_000_000,
        "max_timestamp": 1_700_000_000_001,
        "partition_leader_epoch": 3,
        "producer_id": -1,
        "producer_epoch": -1,
        "base_sequence": -1,
        "last_sequence": -1,
        "is_transactional": False,
        "is_control": False,
        "has_delete_horizon": False,
        "crc": read_header(FIRST).crc,
    }
    assert result.documents[2] == {
        "file": path,
        "type": "record",
        "offset": 6,
        "timestamp": 1_700_000_000_001,
        "key": None,
        "key_encoding": "utf-8",
        "value": "AP8=",
        "value_encoding": "base64",
        "headers": [],
    }
    assert result.documents[7] == {
        "file": path,
        "type": "summary",
        "size_bytes": len(SEGMENT),
        "valid_bytes": len(SEGMENT),
        "entries": 3,
        "records": 4,
        "is_sound": True,
    }
    assert result.documents[8]["offset"] == 7
    assert result.documents[13]["producer_id"] == 9


def flipped(data: bytes, position: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 0x10]) + data[position + 1 :]


@pytest.mark.parametrize(
    ("content", "position", "why"),
    [
        (SEGMENT[:-1], 83 + len(SECOND), "is cut off"),
        (FIRST + SECOND[:30], 83, "30 bytes are left"),
        (flipped(SEGMENT, 30), 0, "the batch at offset 5 does not match its CRC-32C"),
        (flipped(SEGMENT, 83 + 70), 83, "the batch at offset 7 does not match its CRC-32C"),
        (FIRST + b"garbage" * 20, 83, "message format 114"),
        (SECOND + FIRST, len(SECOND), "offset 5 follows offset 7: it goes back"),
        (FIRST + bytes(8) + struct.pack(">iib", 3, 0, 2) + bytes(60), 83, "batch length of 3"),
        (FIRST + bytes(500) + b"\x01", 83, "message format 0"),
    ],
)
def test_damage(run: Callable, tmp_path: Path, content: bytes, position: int, why: str) -> None:
    """Damage is told with the first bad byte and the reason; what came before is shown."""
    path = tmp_path / f"{NAME}.log"
    path.write_bytes(content)
    result = run("log", "dump", path)
    assert result.code == 1
    assert result.err.startswith(
        f"error: {path} is damaged, the first bad byte is at position {position} - "
    )
    assert why in result.err
    assert result.err.count("\n") == 1
    json_result = run("log", "dump", path, "--format", "json")
    assert json_result.code == 1
    *_, damage, summary = json_result.documents
    assert (damage["type"], damage["position"]) == ("damage", position)
    assert why in damage["reason"]
    assert (summary["valid_bytes"], summary["is_sound"]) == (position, False)


def test_records_that_do_not_parse_are_damage(run: Callable, tmp_path: Path) -> None:
    """A batch whose CRC is right but whose records are not is found with --records."""
    from anabranch.wire.record_batch import set_log_append_time

    batch = bytearray(FIRST)
    batch[61] = 0x7E  # the first record's length
    set_log_append_time(memoryview(batch), 5)  # renews the CRC
    path = tmp_path / f"{NAME}.log"
    path.write_bytes(batch)
    assert run("log", "dump", path).code == 0
    result = run("log", "dump", path, "--records")
    assert result.code == 1
    assert "position 0 - the batch at offset 5: a record declares" in result.err


def test_one_damaged_file_does_not_hide_the_next(run: Callable, folder: Path) -> None:
    """After a damaged file the others are still read, and the exit code is 1."""
    (folder / f"{NAME}.log").write_bytes(SEGMENT[:-1])
    result = run("log", "dump", folder)
    assert result.code == 1
    assert result.err.count("\n") == 4
    assert ".timeindex: 2 entries" in result.err


@pytest.mark.parametrize("extra", [b"", bytes(1), bytes(3_000_000)])
def test_reserved_space_is_no_damage(run: Callable, tmp_path: Path, extra: bytes) -> None:
    """Zeros up to the end are space reserved in advance; an empty segment is sound."""
    path = tmp_path / f"{NAME}.log"
    path.write_bytes(SEGMENT + extra)
    assert run("log", "dump", path).code == 0
    path.write_bytes(extra)
    result = run("log", "dump", path, "--format", "json")
    assert result.code == 0
    assert result.documents[-1]["valid_bytes"] == 0


@pytest.mark.parametrize(
    ("suffix", "content", "position", "why"),
    [
        (".index", struct.pack(">iiii", 2, 83, 2, 300), 8, "offset 7 does not rise"),
        (".index", struct.pack(">iiii", 1, 83, 2, 83), 0, "offset 6 is not in a batch"),
        (".index", struct.pack(">iiii", 2, 83, 3, 83), 8, "position 83 does not rise"),
        (".index", struct.pack(">ii", 2, 10_000), 0, "is not in a batch at position 10000"),
        (".index", struct.pack(">ii", -2, 83), 0, "offset 3 does not rise"),
        (".index", struct.pack(">ii", 2, 83) + b"\x01\x02\x03", 8, "3 bytes are left"),
        (".timeindex", struct.pack(">qiqi", 9, 1, 8, 2), 12, "timestamp 8 goes back"),
        (".timeindex", struct.pack(">qiqi", 8, 2, 9, 1), 12, "offset 6 goes back"),
        (".timeindex", struct.pack(">qi", 8, 2) + b"\x01", 12, "1 bytes are left"),
        (".snapshot", b"\x00\x01" + bytes(4) + b"\x00\x00\x00\x07", 0, "CRC-32C, size or version"),
        (".snapshot", b"", 0, "CRC-32C, size or version"),
    ],
)
def test_damaged_index_and_snapshot(
    run: Callable, folder: Path, suffix: str, content: bytes, position: int, why: str
) -> None:
    """Index entries must rise and agree with the segment, a snapshot with its CRC."""
    path = folder / f"{NAME}{suffix}"
    path.write_bytes(content)
    result = run("log", "dump", path, "--format", "json")
    assert result.code == 1
    *_, damage, _ = result.documents
    assert (damage["type"], damage["position"]) == ("damage", position)
    assert why in damage["reason"]


def test_repeated_time_entries_are_sound(folder: Path) -> None:
    """Rolling a segment may repeat the last entry."""
    path = folder / f"{NAME}.timeindex"
    path.write_bytes(struct.pack(">qiqi", 9, 1, 9, 1))
    assert len(list(read_file(path, with_records=False))) == 2


def test_a_folder_without_segments(run: Callable, tmp_path: Path) -> None:
    """A folder that is no partition's is told so, even with log files of other programs."""
    (tmp_path / "build.log").write_text("hello")
    result = run("log", "dump", tmp_path)
    assert result.code == 1
    assert f"There is nothing to show in {tmp_path} - it has no segment files" in result.err


def test_gzip_records_of_a_large_batch(run: Callable, tmp_path: Path) -> None:
    """Compressed records are read, and every one of a long table is shown."""
    records = [Record(n, n, None, b"value %d" % n) for n in range(3000)]
    path = tmp_path / f"{0:020}.log"
    path.write_bytes(build_batch(records, base_offset=0, codec=GZIP))
    assert run("log", "dump", path, "--format", "json").documents[0]["codec"] == "gzip"
    lines = run("log", "dump", path, "--records").out.splitlines()[2:]
    assert [int(line.split()[0]) for line in lines] == list(range(3000))
