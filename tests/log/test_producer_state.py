"""Idempotent producers: sequences, epochs, duplicates, and the snapshot's bytes."""

import struct
from pathlib import Path

import pytest
from crc32c import crc32c
from log_kit import NOW_MS, append, batch_of, open_log

from anabranch.log.log_config import LogConfig
from anabranch.log.producer_state import ProducerStates, decode_snapshot, encode_snapshot
from anabranch.model.errors import ErrorCode, KafkaError

LAST = 2**31 - 1


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        # (epoch, sequence, count) after epoch 5 wrote sequences 0-1, 2-3, ... 10-11
        ((5, 12, 2), "appended"),
        ((5, 10, 2), "duplicate"),
        ((5, 2, 2), "duplicate"),
        ((5, 0, 2), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),  # the sixth from the end: forgotten
        ((5, 10, 1), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        ((5, 11, 1), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        ((5, 13, 1), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        ((4, 12, 1), ErrorCode.INVALID_PRODUCER_EPOCH),
        ((6, 0, 1), "appended"),
        ((6, 12, 1), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    ],
)
@pytest.mark.parametrize("reopened", ["no", "clean", "crashed"])
def test_sequences(
    tmp_path: Path, sent: tuple[int, int, int], expected: object, reopened: str
) -> None:
    """Each case is answered as Kafka does, also after a restart."""
    log = open_log(tmp_path / "t-0", LogConfig(segment_bytes=250))
    for sequence in range(0, 12, 2):
        append(log, 2, producer=(7, 5, sequence))
    if reopened != "no":
        log.close(NOW_MS)
        log = open_log(log.folder, clean=reopened == "clean")
    epoch, sequence, count = sent
    batch = batch_of(count, producer=(7, epoch, sequence))
    if isinstance(expected, ErrorCode):
        with pytest.raises(KafkaError) as caught:
            log.append(batch, now_ms=NOW_MS)
        assert caught.value.code is expected
        assert log.log_end_offset == 12
    elif expected == "duplicate":
        info = log.append(batch, now_ms=NOW_MS)
        assert info == (sequence, sequence + count - 1, -1, True)
        assert log.log_end_offset == 12
    else:
        assert log.append(batch, now_ms=NOW_MS).first_offset == 12
    log.close(NOW_MS)


def test_a_batch_of_an_old_epoch_is_no_duplicate(tmp_path: Path) -> None:
    """What epoch 5 wrote at sequence 3 does not make epoch 6's sequence 3 a duplicate."""
    log = open_log(tmp_path / "t-0")
    for sequence in range(4):
        append(log, producer=(7, 5, sequence))
    append(log, producer=(7, 6, 0))
    with pytest.raises(KafkaError) as caught:
        append(log, producer=(7, 6, 3))
    assert caught.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    log.close(NOW_MS)


def test_an_unknown_producer_may_start_anywhere(tmp_path: Path) -> None:
    """A producer id that is not known is taken at its word."""
    log = open_log(tmp_path / "t-0")
    append(log, producer=(7, 3, 1234))
    append(log, producer=(7, 3, 1235))
    log.close(NOW_MS)


def test_sequences_wrap(tmp_path: Path) -> None:
    """After 2^31 - 1 comes 0, also in the middle of a batch."""
    log = open_log(tmp_path / "t-0")
    append(log, 2, producer=(7, 0, LAST - 1))
    append(log, 1, producer=(7, 0, 0))
    append(log, 3, producer=(8, 0, LAST - 1))
    assert append(log, 1, producer=(8, 0, 1)) == (6, 6)
    info = log.append(batch_of(3, producer=(8, 0, LAST - 1)), now_ms=NOW_MS)
    assert info == (3, 5, -1, True)
    log.close(NOW_MS)


def test_a_refused_batch_does_not_move_the_sequence(tmp_path: Path) -> None:
    """What was refused for another reason can be sent again under the same sequence."""
    log = open_log(tmp_path / "t-0", LogConfig(message_timestamp_after_max_ms=10))
    with pytest.raises(KafkaError):
        log.append(batch_of(producer=(7, 0, 0), timestamp=NOW_MS + 99), now_ms=NOW_MS)
    assert append(log, producer=(7, 0, 0)) == (0, 0)
    log.close(NOW_MS)


def test_silent_producers_expire(tmp_path: Path) -> None:
    """A producer silent for the expiration time is forgotten, by the broker's clock."""
    log = open_log(tmp_path / "t-0", LogConfig(producer_id_expiration_ms=1000))
    append(log, producer=(7, 0, 0), timestamp=5)
    assert log.expire_producers(NOW_MS + 999) == 0
    assert [p.producer_id for p in log.producers()] == [7]
    assert log.expire_producers(NOW_MS + 1000) == 1
    append(log, producer=(7, 0, 40))
    log.close(NOW_MS)


def test_snapshot_bytes() -> None:
    """The file is Kafka's version 1, byte for byte, and reads back to the same state."""
    states = ProducerStates()
    states.record(4000, 2, 17, 2, 102, 1234, NOW_MS)
    states.record(4001, 0, LAST, 1, 104, -1, NOW_MS)
    body = struct.pack(">i", 2)
    body += struct.pack(">qhiqiqiq", 4000, 2, 19, 102, 2, 1234, -1, -1)
    body += struct.pack(">qhiqiqiq", 4001, 0, 0, 104, 1, -1, -1, -1)
    expected = struct.pack(">hI", 1, crc32c(body)) + body
    assert encode_snapshot(states) == expected
    loaded = decode_snapshot(expected, NOW_MS)
    assert loaded is not None
    assert encode_snapshot(loaded) == expected
    assert [e.next_sequence for e in loaded.entries.values()] == [20, 1]
    assert [list(e.batches) for e in loaded.entries.values()] == [
        [(17, 19, 100, 102, 1234)],
        [(LAST, 0, 103, 104, -1)],
    ]


@pytest.mark.parametrize("position", [0, 3, 7, 12, 30])
def test_damaged_snapshots_are_not_believed(tmp_path: Path, position: int) -> None:
    """A snapshot with a wrong byte is ignored and the state is read from the log instead."""
    log = open_log(tmp_path / "t-0")
    append(log, producer=(7, 0, 0))
    log.close(NOW_MS)
    path = log.folder / f"{1:020d}.snapshot"
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)
    assert decode_snapshot(bytes(content), NOW_MS) is None
    log = open_log(log.folder)
    assert append(log, producer=(7, 0, 1)) == (1, 1)
    with pytest.raises(KafkaError):
        append(log, producer=(7, 0, 9))
    log.close(NOW_MS)
    assert decode_snapshot(b"", NOW_MS) is None


def test_snapshots_follow_the_segments(tmp_path: Path) -> None:
    """There is a snapshot for each segment start after the first, and one for a clean end."""
    log = open_log(tmp_path / "t-0", LogConfig(segment_bytes=250))
    for sequence in range(8):
        append(log, producer=(7, 0, sequence))
    bases = [segment.base_offset for segment in log.segments]
    log.close(NOW_MS)
    names = sorted(path.name for path in log.folder.glob("*.snapshot"))
    assert names == [f"{offset:020d}.snapshot" for offset in [*bases[1:], 8]]
